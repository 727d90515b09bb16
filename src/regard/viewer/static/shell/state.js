// What is being looked at, as one flat object, and as the part of the address after "#": a deep link.
//
// Shared keys: view, trace (id), entry (of the batch), call (id), head, query (row), level ("token" or "word").
// `model`, `sentence`, `second` and `generate` say how the trace was made. A view adds its own keys; null removes a key.
import { callOf, sideOf } from "../data/tokens.js";

const words = (x) => (["string", "number"].includes(typeof x) ? String(x) : null);
const place = (x) => (Number.isInteger(x) && x >= 0 ? x : null);
const list = (x) => (Array.isArray(x) ? x : null);
const parts = (x) => (typeof x === "object" && !Array.isArray(x) ? x : null);

/** What may stand in a link; what is something else is left out. Views bring numbers within what they show. */
const KINDS = {
  ...{ view: words, trace: words, call: words, text: words, sort: words, lines: words },
  ...{ model: words, sentence: words, second: words, generate: place },
  ...{ entry: place, head: place, query: place, step: place, at: place },
  ...{ heads: list, pins: list, mute: list, models: list },
  ...{ lookup: parts, translate: parts, map: parts, picture: parts, sound: parts, inside: parts, toward: parts },
  level: (x) => (x === "word" ? x : null),
  shift: (x) => (Number.isInteger(x) ? x : null),
};

const UNSAFE = /[!'()*~]|[.,:]$/g;
const escaped = (letter) => `%${letter.charCodeAt(0).toString(16).toUpperCase()}`;

const BARE = /^[\w.\- /:]+$/;

/** {view: "heads", heads: [0, 3]} ↔ "view=heads&heads=%5B0,3%5D": JSON, and words that are no JSON as they are.
 *
 * Quotes, brackets and a final full stop are escaped: chats and mail programs end a link at them.
 */
export function encode(state) {
  const parts = Object.entries(state)
    .filter(([, value]) => value != null)
    .map(([key, value]) => {
      const bare = typeof value === "string" && BARE.test(value) && read(value) === value;
      const text = encodeURIComponent(bare ? value : JSON.stringify(value));
      return `${encodeURIComponent(key)}=${text.replace(/%(2C|3A|2F)/g, decodeURIComponent).replace(UNSAFE, escaped)}`;
    });
  return parts.join("&");
}

/** The state in a link; what cannot be read in it is left out. */
export function decode(text) {
  /** @type {State} */
  const state = {};
  for (const [key, words] of new URLSearchParams(text.replace(/^#/, ""))) {
    const given = read(words);
    const value = given != null && Object.hasOwn(KINDS, key) ? KINDS[key](given) : given;
    if (value != null) state[key] = value;
  }
  return state;
}

function read(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** `linked`: keep the state in the address of the page; a notebook has none of its own.
 *
 * @param {boolean} linked
 * @returns {StateStore}
 */
export function makeState(linked) {
  /** @type {State} */
  let current = linked ? decode(location.hash) : {};
  let written = linked ? location.hash : "";
  let waiting = 0;
  const listeners = new Set();

  const tell = (before) => {
    for (const listener of listeners) listener(current, before);
  };
  const write = (push) => {
    waiting = 0;
    const hash = `#${encode(current)}`;
    if (hash === written) return;
    written = hash;
    if (push) history.pushState(null, "", hash);
    else history.replaceState(null, "", hash);
  };
  const flush = (push) => {
    clearTimeout(waiting);
    // Browsers refuse many changes of the address in a short time; a slider makes dozens a second.
    if (push) write(true);
    else waiting = setTimeout(() => write(false), 150);
  };
  const back = () => {
    if (location.hash === written) return;
    const before = current;
    written = location.hash;
    current = decode(location.hash);
    tell(before);
  };
  if (linked) window.addEventListener("popstate", back);

  return {
    get: () => current,
    /** Another view or trace is a step that the Back button undoes; the rest changes the address in place. */
    set(patch) {
      const before = current;
      const next = { ...current };
      for (const [key, value] of Object.entries(patch)) {
        if (value == null) delete next[key];
        else next[key] = value;
      }
      if (encode(next) === encode(before)) return;
      current = next;
      const step = before.view !== undefined && (next.view !== before.view || next.trace !== before.trace);
      if (linked) flush(step);
      tell(before);
    },
    on(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    /** The address of this state, with what else it should say. */
    link: (more = {}) => `${linked ? location.href.split("#")[0] : ""}#${encode({ ...current, ...more })}`,
    close() {
      clearTimeout(waiting);
      window.removeEventListener("popstate", back);
    },
  };
}

/** Words of which one asks what they stand for. */
const PRONOUNS = new Set("it she he they her him them its his their this that who which".split(" "));

/** Another trace is looked at from its beginning: what was chosen in the last one may not exist in it. */
export function ofTrace(id) {
  const chosen = ["call", "other", "head", "heads", "query", "entry", "pins", "step", "at", "shift", "toward"];
  const linked = ["model", "sentence", "second", "generate"]; // of the link that the page was opened with
  return { trace: id, ...Object.fromEntries([...chosen, ...linked].map((key) => [key, null])) };
}

/** A word worth choosing in a new text, as in the first view: the last pronoun, or the longest word. @param {Trace} trace */
export function wordToPin(trace, call) {
  if (!trace.calls.length) return null;
  const { labels, special } = sideOf(trace, callOf(trace, { call }), "query", "token");
  const words = labels.flatMap((label, at) => (special[at] || !/^\p{L}{2,}$/u.test(label) ? [] : [{ label, at }]));
  const pronoun = words.findLast(({ label }) => PRONOUNS.has(label.toLowerCase()));
  const longest = words.reduce((most, word) => (word.label.length > (most?.label.length ?? 0) ? word : most), words[0]);
  const word = pronoun ?? longest;
  return word ? [`q${word.at}`] : null;
}

/** What this browser keeps under a name: null where it has nothing yet, undefined where it keeps nothing (from disk, in a sandbox). */
export function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return undefined;
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // It then lasts as long as the page.
  }
}

// Light, dark, or as the system has it.

const THEME = "regard-theme";
/** @typedef {"auto" | "light" | "dark"} Choice */

/** @type {Choice[]} */
const ORDER = ["auto", "light", "dark"];

/** @returns {Choice} */
const sound = (name) => ORDER.find((one) => one === name) ?? "auto";

/** Sets data-theme on `root` and calls `changed` whenever what is shown changes. */
export function makeTheme(root, changed) {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let choice = sound(kept(THEME));
  /** What is shown for the time of an export. @type {"light" | null} */
  let forced = null;
  /** @returns {"light" | "dark"} */
  const shown = () => forced ?? (choice === "auto" ? (system.matches ? "dark" : "light") : choice);
  const apply = () => {
    root.dataset.theme = shown();
    changed();
  };
  system.addEventListener("change", apply);
  root.dataset.theme = shown();
  return {
    get choice() {
      return choice;
    },
    get shown() {
      return shown();
    },
    choose(next) {
      choice = sound(next);
      keep(THEME, choice);
      apply();
    },
    /** Dark on white while `work` draws a figure, whatever the page's colours are. */
    async onWhite(work) {
      forced = "light";
      root.style.setProperty("--paper", "#ffffff");
      apply();
      try {
        return await work();
      } finally {
        forced = null;
        root.style.removeProperty("--paper");
        apply();
      }
    },
    next() {
      this.choose(ORDER[(ORDER.indexOf(choice) + 1) % ORDER.length]);
    },
    close: () => system.removeEventListener("change", apply),
  };
}

// Elements, made in one line. Data only ever becomes text: nothing here reads markup.
import { ownName } from "../data/tokens.js";

/** el("button.quiet", {onclick: f, "aria-label": "Close"}, "text", child): on… are listeners, the rest attributes; without
 * any, children come first.
 *
 * @template {string} Name
 * @param {Name} name tag and classes
 * @param {(Node | string | null | undefined | Record<string, any>)[]} children
 * @returns {ElementOf<Name>}
 */
export function el(name, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = /** @type {any} */ (document.createElement(tag));
  if (classes.length) node.className = classes.join(" ");
  if (tag === "button") node.type = "button"; // HTML's own would send the form that it stands in
  const plain = children[0] && Object.getPrototypeOf(children[0]) === Object.prototype;
  for (const [key, value] of Object.entries((plain && children.shift()) || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in DIRECT) node[key] = value;
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, String(value));
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

const DIRECT = { value: 1, checked: 1, disabled: 1, hidden: 1, selected: 1, htmlFor: 1, tabIndex: 1 };

/** A select with a label: options are [value, text] pairs, or {title} by value. */
export function choice(label, options, value, changed, attributes = {}) {
  const pairs = Array.isArray(options)
    ? options
    : Object.entries(options).map(([key, option]) => [key, option.title ?? key]);
  const select = el(
    "select",
    { ...attributes, onchange: () => changed(select.value) },
    ...pairs.map(([key, text]) => el("option", { value: key, selected: String(key) === String(value) }, text)),
  );
  return el("label.field", el("span", label), select);
}

/** A row of buttons of which one is pressed: options are by value a text, or {title, about}. */
export function segments(label, options, value, changed) {
  const buttons = Object.entries(options).map(([key, option]) => {
    const { title, about = null } = typeof option === "string" ? { title: option } : option;
    return el("button", { title: about, "data-key": key, onclick: () => changed(key) }, title);
  });
  const group = el("div.segments", { role: "group", "aria-label": label }, ...buttons);
  const show = (chosen) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.key === chosen));
  };
  show(value);
  return Object.assign(group, { show });
}

/** A tick box with its label. */
export function tick(label, checked, changed, title = "") {
  const box = el("input", { type: "checkbox", checked, onchange: () => changed(box.checked) });
  const field = el("label.tick", { title }, box, el("span", label));
  const show = (value) => {
    box.checked = value;
  };
  return Object.assign(field, { show });
}

/** A slider with its label and its value in words. */
export function slider(label, range, value, words, changed, title = "") {
  const out = el("output", words(value));
  const input = el("input", {
    type: "range",
    min: range[0],
    max: range[1],
    step: range[2],
    value: String(value),
    oninput: () => {
      out.textContent = words(Number(input.value));
      changed(Number(input.value));
    },
  });
  const field = el("label.field", { title }, el("span", label), input, out);
  const show = (now) => {
    input.value = String(now);
    out.textContent = words(now);
  };
  return Object.assign(field, { show });
}

/** Fill a box with what `make()` gives, anew only where `stamp` is another: one of its fields may be in use, and keeps the focus. */
export function refill(box, stamp, make) {
  if (box.stamp === stamp) return;
  box.stamp = stamp;
  const all = () => /** @type {HTMLElement[]} */ ([...box.querySelectorAll("select, button, input")]);
  const held = all().indexOf(/** @type {HTMLElement} */ (document.activeElement));
  box.replaceChildren(...make());
  all()[held]?.focus();
}

/** A list of `calls`, `changed(id)` when another is chosen. @param {Trace} trace @param {Call} call */
export function callChoice(trace, call, changed, { calls = trace.calls, label = "Layer" } = {}) {
  const several = new Set(trace.calls.map((one) => one.kind)).size > 1;
  const options = calls.map((one) => {
    const name = ownName(trace, one);
    return [one.id, several ? `${name} (${one.kind})` : name];
  });
  return choice(label, options, call.id, changed, { title: call.name });
}

// One square per head in its colour: a click turns a head on or off, a double click turns all the others off.

/** The heads of a call that a link turns on; all, where it says nothing. @param {Call} call @param {State} state */
export function headsOn(call, { heads }) {
  const all = Array.from({ length: call.heads }, (_, head) => head);
  return Array.isArray(heads) ? all.filter((head) => heads.includes(head)) : all;
}

/** `changed(list)` with the heads that are on, or null for all of them; `every` is a button for all, while some are off. */
export function headButtons(changed) {
  const group = el("div.heads", { role: "group", "aria-label": "Heads" });
  const every = el("button.all-heads", { hidden: true, onclick: () => changed(null) }, "All heads");
  let count = 0;
  /** @type {number[]} */
  let active = [];
  const set = (chosen) => changed(chosen.length === count ? null : chosen);
  const toggle = (head) => {
    const next = active.includes(head) ? active.filter((one) => one !== head) : [...active, head].sort((a, b) => a - b);
    set(next);
  };
  const only = (head) => set(active.length === 1 && active[0] === head ? everything() : [head]);
  const everything = () => Array.from({ length: count }, (_, i) => i);
  const show = (heads, on, palette) => {
    active = on;
    every.hidden = on.length === heads;
    every.title = `Turn all ${heads} heads on (a)`;
    if (heads !== count) {
      count = heads;
      group.replaceChildren(
        ...everything().map((head) => {
          const words = `Head ${head}. Click: on or off. Double click: this head only.`;
          return el(
            "button.head",
            { title: words, "aria-label": `Head ${head}`, onclick: () => toggle(head), ondblclick: () => only(head) },
            String(head),
          );
        }),
      );
    }
    /** @type {HTMLElement[]} */ ([...group.children]).forEach((button, head) => {
      button.setAttribute("aria-pressed", String(on.includes(head)));
      button.style.setProperty("--head", palette.head(head));
      button.style.setProperty("--on-head", palette.overHead(head));
    });
  };
  return Object.assign(group, { show, every });
}

/** A button that plays steps: `place()` is [the step, how many there are], `go(step)` shows one; `pace` is milliseconds a step. */
export class Player {
  constructor(pace, place, go) {
    this.button = el("button", { onclick: () => this.toggle() }, "Play");
    this.pace = pace;
    this.place = place;
    this.go = go;
    this.timer = 0;
  }

  /** Play on, at the end from the beginning; or pause. */
  toggle() {
    if (this.timer) return this.pause();
    const [step, count] = this.place();
    if (count && step === count - 1) this.go(0);
    this.button.textContent = "Pause";
    this.timer = setInterval(() => this.forward(), this.pace);
  }

  forward() {
    const [step, count] = this.place();
    if (step + 1 < count) this.go(step + 1);
    else this.pause();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    this.button.textContent = "Play";
  }
}

/** `taken(file)` gets one file of at most `most` bytes; anything else is told to `failed(error)`. */
export function makeDrop(target, { label, accept, most, taken, failed }) {
  const take = (file) => {
    if (!file) return;
    const count = (bytes) => bytes.toLocaleString("en");
    if (most && file.size > most)
      failed(
        new Error(`${file.name} has ${count(file.size)} bytes; at most ${count(most)} are taken: make it smaller`),
      );
    else taken(file);
  };
  const input = el("input.unseen", {
    type: "file",
    accept,
    "aria-label": label,
    onchange: () => take(input.files?.[0]),
  });
  const root = el("label.drop", label, input);
  const over = (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    target.classList.add("dropping");
  };
  const leave = () => target.classList.remove("dropping");
  const drop = (event) => {
    event.preventDefault();
    leave();
    take(event.dataTransfer.files[0]);
  };
  const listeners = { dragover: over, dragleave: leave, drop };
  for (const [name, listener] of Object.entries(listeners)) target.addEventListener(name, listener);
  return {
    root,
    close() {
      for (const [name, listener] of Object.entries(listeners)) target.removeEventListener(name, listener);
    },
  };
}

/** One line: a bar of `share` of the width, a head's number in its colours if there is one, the label, its place, its weight.
 *
 * With `most`, `weight` is of several heads: a second line names the strongest of them and its own weight.
 *
 * @param {{label: string, at: number, weight: number, share: number, title: string, run: () => void,
 *   head?: {number: number, color: string, ink: string} | null, most?: number | null}} row
 */
export function barRow({ label, at, weight, share, head = null, most = null, title, run }) {
  const fill = el("span.barfill");
  fill.style.width = `${100 * share}%`;
  const dot = head ? el("span.dot", { "aria-hidden": most == null }, String(head.number)) : null;
  if (dot && head) Object.assign(dot.style, { background: head.color, color: head.ink });
  const word = el("span.barlabel", label, el("small", ` ${at}`));
  return el(
    "button.barrow",
    { "data-at": at, title, onclick: run },
    fill,
    most == null ? dot : null,
    word,
    el("span.value", number(weight)),
    most == null ? null : el("span.most", "most by head ", dot, ` ${number(most)}`),
  );
}

/** 0.0312 → "0.031", 2e-5 → "2.0e-5", 0 → "0". */
export function number(x) {
  if (!Number.isFinite(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  return size < 0.0005 || size >= 1e5 ? x.toExponential(1) : size < 10 ? x.toFixed(3) : x.toFixed(1);
}

/** 1234567 → "1,234,567". */
export const count = (x) => x.toLocaleString("en");

/** A weight with the digits it has. */
export function exact(weight) {
  if (weight === 0) return "0";
  return weight >= 1e-3 ? weight.toFixed(5) : weight.toExponential(3).replace("e-", "e−");
}

/** 1, "head" → "1 head"; 2, "head" → "2 heads". */
export function counted(n, noun) {
  return `${n} ${noun}${n === 1 ? "" : "s"}`;
}

/** A number within bounds; `usual` where it is none. */
export function bounded(value, low, high, usual = low) {
  return Number.isFinite(value) ? Math.max(low, Math.min(high, value)) : usual;
}

/** A table with a heading for each column: `rows` are elements, or {kept, cells} of what was checked. */
export function table(name, titles, rows) {
  const lines = rows.map((row) =>
    row instanceof Node
      ? row
      : el("tr", { "data-kept": String(row.kept ?? null) }, ...row.cells.map((cell) => el("td", String(cell)))),
  );
  const head = titles.map((title) => (typeof title === "string" ? el("th", { scope: "col" }, title) : title));
  return el(name, el("thead", el("tr", ...head)), el("tbody", ...lines));
}

/** The figures of every call, which scroll. */
export function callTable(titles, rows) {
  return el("div.scroll", { tabIndex: 0, role: "region", "aria-label": "Every call" }, table("table", titles, rows));
}

/** A badge that says whether numbers hold, and their error; pressed, it opens a dialog with what explains it. */
export function proofBadge(label) {
  const dialog = el("dialog.proof", { "aria-label": label });
  const button = el("button.badge", { "aria-haspopup": "dialog", onclick: () => dialog.showModal() });
  /** @param {{kept: any, words: any[], error: number | null | undefined, title: string, about: any[]}} proof */
  const show = ({ kept, words, error, title, about }) => {
    button.dataset.kept = String(kept ?? null);
    button.title = title;
    button.replaceChildren(...words, el("span.badge-error", error == null ? "" : ` · error ${number(error)}`));
    dialog.replaceChildren(...about, el("button", { onclick: () => dialog.close() }, "Close"));
  };
  return { button, dialog, show };
}

/** A bar from zero in the colour of a sign. @param {HTMLElement} line */
export function signBar(line, value, palette) {
  /** @type {HTMLElement} */ (line.firstElementChild).style.background = palette.signed(value < 0 ? -0.35 : 0.35);
  return line;
}

/** A line of a list: a name, its share, and a bar of the share. */
export function shareRow(name, share) {
  const fill = el("span.barfill");
  fill.style.width = `${100 * share}%`;
  return el("div.barrow", fill, el("span.barlabel", name), el("span.value", number(share)));
}

/** A row of a table: a name, its share, and a bar beside the largest one's. */
export function shareCells(name, share, most, chosen = false) {
  const fill = el("span.fill.weight");
  fill.style.width = `${(100 * share) / most}%`;
  const cells = [el("td", name), el("td.number", number(share)), el("td", el("span.track", fill))];
  return el("tr", { class: chosen ? "chosen" : null }, ...cells);
}

/** The menu of a call's heads. */
export function headChoice(heads, head, changed) {
  const options = Array.from({ length: heads }, (_, at) => [at, String(at)]);
  return choice("Head", options, head, (value) => changed(Number(value)));
}

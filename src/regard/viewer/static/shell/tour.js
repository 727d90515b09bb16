// The tour: half a minute in which the page shows what it can do, by itself. What it says stands in the line below the
// picture and hides nothing; who presses something goes on alone.

import { callOf, callPath, isNumbered, plain, sideOf } from "../data/tokens.js";
import { el } from "../draw/elements.js";
import { keep, kept } from "./state.js";

const KEY = "regard-tour";
const PACE = 1700; // milliseconds of a word or a head

/** `page` has root, state, source, and `ready()`, which resolves to the trace once the view is on the page. */
export function makeTour({ root, state, source, ready }) {
  const line = el("section.tour", { "aria-label": "Tour", role: "status", hidden: true });
  root.querySelector(".foot").append(line);
  let acting = new AbortController();
  const away = (event) => {
    if (line.hidden || line.contains(event.target) || (event.type === "keydown" && event.key === "Tab")) return;
    stop();
  };

  function stop() {
    acting.abort();
    line.hidden = true;
  }

  const say = (text, ...buttons) => {
    line.replaceChildren(el("span", text), ...buttons, el("button.quiet", { onclick: stop }, "Close"));
    line.hidden = false;
  };

  async function start() {
    acting.abort();
    acting = new AbortController();
    root.querySelector(".tools > .primary")?.remove();
    const { signal } = acting;
    for (const kind of ["pointerdown", "keydown"]) document.addEventListener(kind, away, { capture: true, signal });
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    const pause = () => new Promise((resolve) => setTimeout(resolve, still ? 0 : PACE));
    const before = state.get();
    const trace = await ready();
    for (const { text, states } of trace ? await steps(trace, before) : []) {
      if (signal.aborted) return;
      say(text);
      for (const next of states) {
        if (signal.aborted) return;
        state.set(next);
        await pause();
      }
      await pause();
    }
  }

  /** What is said, and the states of the page meanwhile. @param {Trace} trace @param {State} now */
  async function steps(trace, now) {
    const call = callOf(trace, now);
    const { labels, special } = sideOf(trace, call, "query", "token");
    const words = labels.flatMap((label, at) => (special[at] || !/\p{L}{2}/u.test(label) ? [] : [`q${at}`]));
    const some = [1, 2, 3, 4, 5].map((n) => words[Math.floor((n * words.length) / 6)]).filter(Boolean);
    const all = { view: "heads", level: null, heads: null };
    const heads = trace.calls
      .slice(0, 4)
      .map((one, at) => ({ view: "model", call: one.id, head: (2 * at) % one.heads }));
    return [
      {
        text: "A line leads from a word to a word that the model looks at, in the colour of a head. Drawn is what stands out.",
        states: some.map((pin) => ({ ...all, pins: [pin] })),
      },
      { text: "Every head of every layer as a small map. Most have a habit, whatever the text says.", states: heads },
      ...(await surprise(trace, now)),
    ];
  }

  /** The head with the strongest favourite word. @param {Trace} trace @param {State} now */
  async function surprise(trace, now) {
    try {
      const { heads } = await source.get(`/api/traces/${encodeURIComponent(trace.id)}/patterns`, {
        entry: now.entry ?? 0,
      });
      const most = heads.reduce(
        (best, one) => (one.scores["same word"] > (best?.scores["same word"] ?? 0.3) ? one : best),
        null,
      );
      const call = callOf(trace, { call: most.call });
      const { data } = await source.array(`${callPath(trace, call)}/received`, {
        entry: now.entry ?? 0,
        head: most.head,
      });
      const { tokens, special } = sideOf(trace, call, "key", "token");
      const at = tokens.reduce((best, _, j) => (!special[j] && j && data[j] > (data[best] ?? 0) ? j : best), -1);
      const name = isNumbered(trace) ? `${call.layer}.${most.head}` : String(most.head);
      const text = `Surprise: head ${name} looks at “${plain(tokens[at])}” from every word. A strong line may be nothing but a habit.`;
      return [{ text, states: [{ view: "heads", call: call.id, heads: [most.head], pins: [`k${at}`] }] }];
    } catch {
      return []; // no head has a favourite word, or a file holds no patterns
    }
  }

  /** Once, to who comes the first time; it covers nothing. */
  const offer = () => {
    keep(KEY, "done");
    const button = el("button.primary", { onclick: start }, "Half a minute: take the tour");
    root.querySelector(".tools").prepend(button);
  };

  return { offer, start, stop };
}

export function firstUse() {
  return !location.hash && kept(KEY) === null; // where nothing can be kept, it would come every time
}

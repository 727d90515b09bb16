// The tour: a card about each thing worth knowing, while the page shows it. The page stays usable under it: who presses
// something goes on alone, and the card waits.

import { el } from "../draw/elements.js";
import { views } from "../views/index.js";
import { keep, kept } from "./state.js";

const KEY = "regard-tour";
const LINGER = 400; // milliseconds that the offer stays after the first press

/** `page` has root, state, `shows(view)`, and `ready()`, which resolves to the trace once the view is on the page. */
export function makeTour(page) {
  const { root, state } = page;
  let at = 0;
  /** @type {Element | null} */
  let marked = null;
  /** @type {State} */
  let before = {};
  /** @type {Step[]} */
  let steps = [];
  /** @type {HTMLElement | null} */
  let offered = null;
  let acting = new AbortController();
  const card = el("section.tour", { role: "dialog", "aria-label": "Tour", hidden: true, tabIndex: -1 });
  root.append(card);

  card.addEventListener("keydown", (event) => {
    if (event.key === "Escape") end();
    else if (event.key === "ArrowRight") go(at + 1);
    else if (event.key === "ArrowLeft") go(at - 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  root.addEventListener(
    "pointerdown",
    (event) => {
      if (!card.contains(event.target)) acting.abort(); // the visitor does it alone
    },
    true,
  );

  /** A line above `node` that asks who comes the first time; it covers nothing and takes no focus. */
  function offer(node) {
    const decline = () => {
      keep(KEY, "done");
      offered?.remove();
      root.querySelector(".stage").focus();
    };
    offered = el(
      "section.offer",
      { "aria-label": "Offer of a tour", onkeydown: (event) => event.key === "Escape" && decline() },
      el(
        "span",
        el("span.about-page", "Lines show which words a model looks at. "),
        "New here? In half a minute the page shows what it can do.",
      ),
      el("button", { onclick: start }, "Take the tour"),
      el("button.quiet", { onclick: decline }, "No, thanks"),
    );
    node.before(offered);
    root.addEventListener("pointerup", pass, true);
  }

  /** Who does something on the page has begun without the tour: the offer goes; the button "Tour" stays. */
  function pass(event) {
    if (offered?.contains(event.target)) return;
    root.removeEventListener("pointerup", pass, true);
    keep(KEY, "done");
    setTimeout(() => offered?.remove(), LINGER); // after a double click: what is pressed must not move away
  }

  function start() {
    offered?.remove();
    steps = tourSteps(root, page.shows);
    before = state.get();
    card.hidden = false;
    go(0);
  }

  /** Everything as it was before the tour. */
  function end() {
    acting.abort();
    card.hidden = true;
    marked?.classList.remove("toured");
    keep(KEY, "done");
    state.set({ ...Object.fromEntries(Object.keys(state.get()).map((key) => [key, null])), ...before });
    root.querySelector(".stage").focus();
  }

  function go(to) {
    if (to >= steps.length) return end();
    at = Math.max(0, to);
    const { view, title, text } = steps[at];
    if (view) state.set({ view });
    const last = at === steps.length - 1;
    const next = el("button.primary", { onclick: () => go(at + 1) }, last ? "Done" : "Next");
    card.replaceChildren(
      el("h2", title),
      el("p", text),
      el(
        "div.buttons",
        el("span.quietly", `${at + 1} of ${steps.length}`),
        el("button.quiet", { hidden: last, onclick: end }, "Skip"),
        el("button", { disabled: at === 0, onclick: () => go(at - 1) }, "Back"),
        next,
      ),
    );
    mark();
    next.focus();
    act(steps[at]);
  }

  /** Do what the step is about, until the next one or until the visitor takes over. */
  async function act(step) {
    acting.abort();
    acting = new AbortController();
    const { signal } = acting;
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    const pause = (milliseconds) =>
      new Promise((resolve, reject) => {
        const stop = () => reject(new DOMException("the tour went on", "AbortError"));
        if (signal.aborted) stop();
        signal.addEventListener("abort", stop);
        setTimeout(resolve, still ? 0 : milliseconds);
      });
    try {
      const trace = await page.ready();
      if (!signal.aborted && trace) await step.act?.({ root, state, trace, pause });
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  }

  /** What the card is about has a frame; the card stands in the corner of the page. */
  function mark() {
    marked?.classList.remove("toured");
    const place = root.querySelector(steps[at].at);
    marked = place?.getClientRects().length ? place : root.querySelector(".tools");
    marked?.classList.add("toured");
  }

  return { offer, start };
}

export function firstUse() {
  return !location.hash && kept(KEY) === null; // where nothing can be kept, it would come every time
}

// The steps of the tour: those of the views that have one, then two about the page. Each does what it is about.

/** @typedef {{view?: string, at: string, title: string, text: string, act?(stage: TourStage): Promise<void>}} Step */

/** @type {Step} */
const SENTENCE = {
  view: "heads",
  at: ".sentence-form",
  title: "A sentence of your own",
  text: "The page types a sentence and a model reads it. Type your own here at any time; the buttons choose the model.",
  act: typeSentence,
};
/** @type {Step} */
const EXPORT = {
  at: ".tools",
  title: "Take it along",
  text: "Export saves what you see as SVG, PNG or CSV, or copies a link that restores it. The key ? lists every shortcut.",
};

/** `shows(view)` says whether a view has something to show. @returns {Step[]} */
function tourSteps(root, shows) {
  const own = views.flatMap(({ name, tour }) => (tour && shows(name) ? [{ view: name, at: ".stage", ...tour }] : []));
  const form = root.querySelector(SENTENCE.at);
  return [...own, ...(form?.querySelector(".example") && shows(SENTENCE.view) ? [SENTENCE] : []), EXPORT];
}

/** The last example, letter by letter, and the button that runs it. @param {TourStage} stage */
async function typeSentence({ root, pause }) {
  const form = /** @type {HTMLElement} */ (root.querySelector(SENTENCE.at));
  const input = /** @type {HTMLInputElement} */ (form.querySelector("input[type=text]"));
  const example = /** @type {HTMLElement} */ ([...form.querySelectorAll(".example")].at(-1));
  const text = example.title;
  for (let count = 1; count <= text.length; count++) {
    input.value = text.slice(0, count);
    await pause(25);
  }
  await pause(500);
  example.click();
}

// The steps of the tour: those of the views that have one, then two about the page. Each does what it is about.
import { views } from "../views/index.js";

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
export function tourSteps(root, shows) {
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

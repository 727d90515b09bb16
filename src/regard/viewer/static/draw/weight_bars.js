// A list of tokens with their weights as bars.
import { el } from "./dom.js";
import { number } from "./numbers.js";

/** One line: a bar of `share` of the width, a dot in `color` if there is one, the label, its place and its weight. */
export function barRow({ label, at, weight, share, color = "", title, run }) {
  const fill = el("span.barfill");
  fill.style.width = `${100 * share}%`;
  const dot = color ? el("span.dot") : null;
  if (dot) dot.style.background = color;
  const word = el("span.barlabel", {}, label, el("small", {}, ` ${at}`));
  return el(
    "button.barrow",
    { type: "button", "data-at": at, title, onclick: run },
    fill,
    dot,
    word,
    el("span.value", {}, number(weight)),
  );
}

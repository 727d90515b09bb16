// A list of tokens with their weights as bars.
import { el } from "./dom.js";
import { number } from "./numbers.js";

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
  const word = el("span.barlabel", {}, label, el("small", {}, ` ${at}`));
  return el(
    "button.barrow",
    { type: "button", "data-at": at, title, onclick: run },
    fill,
    most == null ? dot : null,
    word,
    el("span.value", {}, number(weight)),
    most == null ? null : el("span.most", {}, "most by head ", dot, ` ${number(most)}`),
  );
}

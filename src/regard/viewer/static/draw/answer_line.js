// On a phone the words beside a picture are below it, out of sight: one line of them lies over the picture's lower edge.
import { el } from "./dom.js";

/** A button that goes to `words`; `show(text)` says their first line, and nothing hides it. On wide pages it is not shown.
 *
 * @param {HTMLElement} words
 */
export function answerLine(words) {
  const button = el("button.answer", {
    type: "button",
    hidden: true,
    onclick: () => words.scrollIntoView({ block: "start" }),
  });
  const show = (text) => {
    button.hidden = !text;
    const line = text ? `↓ ${text}` : "";
    if (button.textContent !== line) button.textContent = line;
  };
  return { button, show };
}

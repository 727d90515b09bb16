// A short message at the bottom of the page, which goes away by itself.
import { el } from "../draw/dom.js";

const SHOWN = 3500; // milliseconds

/** Shows a text; it is announced as well. */
export function makeNotice(root, announce) {
  const box = el("div.notice", { hidden: true, "aria-hidden": "true" });
  root.append(box);
  let waiting = 0;
  const show = (text) => {
    clearTimeout(waiting);
    box.textContent = text;
    box.hidden = false;
    announce(text);
    waiting = setTimeout(() => {
      box.hidden = true;
    }, SHOWN);
  };
  return Object.assign(show, { close: () => clearTimeout(waiting) });
}

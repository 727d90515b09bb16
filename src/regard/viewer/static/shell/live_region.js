// What a screen reader is told.
import { el } from "../draw/dom.js";

/** A polite live region in `root`; the last thing said wins, so hovering does not pile up. */
export function makeAnnouncer(root) {
  const region = el("div.unseen", { role: "status", "aria-live": "polite" });
  root.append(region);
  let waiting = 0;
  const announce = (text) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      region.textContent = text;
    }, 250);
  };
  return Object.assign(announce, { close: () => clearTimeout(waiting) });
}

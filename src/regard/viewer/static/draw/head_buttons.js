// One square per head in its colour: a click turns a head on or off, a double click turns all the others off.
import { el } from "./dom.js";

/** `changed(list)` with the heads that are on, or null for all of them; `every` is a button for all, while some are off. */
export function headButtons(changed) {
  const group = el("div.heads", { role: "group", "aria-label": "Heads" });
  const every = el("button.all-heads", { type: "button", hidden: true, onclick: () => changed(null) }, "All heads");
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
            {
              type: "button",
              title: words,
              "aria-label": `Head ${head}`,
              onclick: () => toggle(head),
              ondblclick: () => only(head),
            },
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

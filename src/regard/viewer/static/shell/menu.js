// A button that opens a list of things to do.
import { el } from "../draw/dom.js";

/** `items` are [text, run] or [text, run, a second line]; the returned element has `open()`. */
export function menu(title, items) {
  const buttons = items.map(([text, run, about]) =>
    el(
      "button",
      {
        type: "button",
        role: "menuitem",
        onclick: () => {
          close();
          run();
        },
      },
      text,
      about ? el("small", {}, about) : null,
    ),
  );
  const list = el("div.menu", { role: "menu", "aria-label": title, hidden: true, "data-arrows": true }, ...buttons);
  const button = el(
    "button.quiet",
    { type: "button", "aria-haspopup": "menu", "aria-expanded": "false", onclick: () => toggle() },
    title,
  );
  const holder = el("div.holder", {}, button, list);
  const toggle = (open = list.hidden) => {
    list.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    if (open) buttons[0].focus();
  };
  const close = () => toggle(false);
  holder.addEventListener("focusout", (event) => {
    if (!holder.contains(/** @type {Node | null} */ (event.relatedTarget))) close();
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) buttons[(buttons.indexOf(event.target) + step + buttons.length) % buttons.length].focus();
    else if (event.key === "Escape") {
      close();
      button.focus();
    } else return;
    event.preventDefault();
  });
  return Object.assign(holder, { open: () => toggle(true) });
}

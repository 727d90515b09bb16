// The elements of the page: the header with tabs and tools, the bar below it, and the place of the view.
import { el, segments } from "../draw/dom.js";
import { keyOfView, views } from "../views/index.js";
import { proofButton } from "./fidelity_button.js";
import { menu } from "./menu.js";
import { rove } from "./page_shortcuts.js";

/** Build them into the shell's root; what they do is asked of `shell`. */
export function pageLayout(shell) {
  const tabs = views.map((view, at) =>
    el(
      "button.tab",
      {
        type: "button",
        role: "tab",
        id: `tab-${view.name}`,
        title: `${view.hint} (${keyOfView(at)})`,
        "aria-controls": "regard-view",
        onclick: () => shell.state.set({ view: view.name }),
      },
      view.title,
    ),
  );
  const list = el("div.tabs", { role: "tablist", "aria-label": "Views", "data-arrows": true }, ...tabs);
  list.addEventListener("keydown", (event) => rove(tabs, event));
  const fade = () => {
    list.classList.toggle("more-left", list.scrollLeft > 1);
    list.classList.toggle("more-right", list.scrollLeft + list.clientWidth < list.scrollWidth - 1);
  };
  list.addEventListener("scroll", fade, { passive: true });
  new ResizeObserver(fade).observe(list);
  const themeButton = el("button.quiet", { type: "button", onclick: () => shell.theme.next() });
  const exportMenu = menu("Export", [
    ["Picture as SVG", () => shell.export("svg")],
    ["Picture as PNG", () => shell.export("png")],
    ["PNG in the page’s colours", () => shell.export("png", true)],
    ["Numbers as CSV", () => shell.export("csv")],
    ...linkItems(shell),
  ]);
  const helpButton = el(
    "button.quiet",
    {
      type: "button",
      "aria-label": "Keyboard shortcuts and terms",
      title: "Keyboard shortcuts and terms (?)",
      onclick: () => shell.keyboard.help(),
    },
    "?",
  );
  const tourButton = el(
    "button.quiet",
    { type: "button", title: "A short tour", onclick: () => shell.tour.start() },
    "Tour",
  );
  const tools = el("div.tools", {}, exportMenu, tourButton, themeButton, helpButton);
  const meaning = "A trace is what a model attended to while it read or wrote one text";
  const picker = el("select", { "aria-label": "Trace", title: meaning, onchange: () => shell.pick(picker.value) });
  const levels = segments(
    "Level",
    [
      ["token", "Tokens"],
      ["word", "Words"],
    ],
    "token",
    (level) => shell.state.set({ level: level === "word" ? "word" : null }),
  );
  const entryBox = el("span");
  const proof = proofButton();
  const hint = el("p.hint");
  const bar = el("div.bar", {}, el("label.field", {}, el("span", {}, "Trace"), picker), entryBox, levels, proof, hint);
  const alert = el("div.alert", { role: "alert", hidden: true });
  const stage = el("div.stage", { role: "tabpanel", id: "regard-view", tabIndex: -1 });
  // In a notebook the headings and landmarks are the notebook's.
  const [brand, header, main] = shell.page
    ? ["h1.brand", "header.top", "main.rest"]
    : ["span.brand", "div.top", "div.rest"];
  shell.root.replaceChildren(el(header, {}, el(brand, {}, "regard"), list, tools), el(main, {}, bar, alert, stage));
  return { tabs, themeButton, exportMenu, picker, levels, entryBox, proof, hint, bar, alert, stage };
}

/** Links to what is shown. A server asks for its token: the link without it opens where the token is known already. */
function linkItems(shell) {
  if (!shell.page || shell.source.holds) return [["Copy a link to this", () => shell.copyLink()]];
  return [
    [
      "Copy link for others (with the token)",
      () => shell.copyLink(true),
      "Opens in any browser. Whoever has it can use this server.",
    ],
    [
      "Copy link for this browser",
      () => shell.copyLink(),
      "Without the token: a browser that never opened it is refused.",
    ],
  ];
}

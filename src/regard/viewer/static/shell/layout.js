// The elements of the page: the header with tabs and tools, the bar below it, and the place of the view.

import { callTable, choice, el, number, proofBadge, segments } from "../draw/elements.js";
import { keyOfView, views } from "../views/index.js";
import { copyLink, exportView } from "./export.js";
import { rove } from "./keyboard.js";
import { ofTrace } from "./state.js";

/** Build them into the shell's root; what they do is asked of `shell`. */
export function pageLayout(shell) {
  const tabs = views.map((view, at) =>
    el(
      "button.tab",
      {
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
  const themeButton = el("button.quiet", { onclick: () => shell.theme.next() });
  const exportMenu = menu("Export", [
    ["Picture as SVG", () => exportView(shell, "svg")],
    ["Picture as PNG", () => exportView(shell, "png")],
    ["PNG in the page’s colours", () => exportView(shell, "png", true)],
    ["Numbers as CSV", () => exportView(shell, "csv")],
    ...linkItems(shell),
  ]);
  const helpButton = el(
    "button.quiet",
    {
      "aria-label": "Keyboard shortcuts and terms",
      title: "Keyboard shortcuts and terms (?)",
      onclick: () => shell.keyboard.help(),
    },
    "?",
  );
  const tourButton = el("button.quiet", { title: "A short tour", onclick: () => shell.tour.start() }, "Tour");
  const tools = el("div.tools", exportMenu, tourButton, themeButton, helpButton);
  const meaning = "A trace is what a model attended to while it read or wrote one text";
  const picker = el("select", { "aria-label": "Trace", title: meaning, onchange: () => shell.pick(picker.value) });
  const levels = segments("Level", { token: "Tokens", word: "Words" }, "token", (level) =>
    shell.state.set({ level: level === "word" ? "word" : null }),
  );
  const entryBox = el("span");
  const proof = proofButton();
  const hint = el("p.hint");
  const bar = el("div.bar", el("label.field", el("span", "Trace"), picker), entryBox, levels, proof, hint);
  const alert = el("div.alert", { role: "alert", hidden: true });
  const stage = el("div.stage", { role: "tabpanel", id: "regard-view", tabIndex: -1 });
  // In a notebook the headings and landmarks are the notebook's.
  const [brand, header, main] = shell.page
    ? ["h1.brand", "header.top", "main.rest"]
    : ["span.brand", "div.top", "div.rest"];
  shell.root.replaceChildren(el(header, el(brand, "regard"), list, tools), el(main, bar, alert, stage));
  return { tabs, themeButton, exportMenu, picker, levels, entryBox, proof, hint, bar, alert, stage };
}

/** Links to what is shown. A server asks for its token: the link without it opens where the token is known already. */
function linkItems(shell) {
  if (!shell.page || shell.source.holds) return [["Copy a link to this", () => copyLink(shell)]];
  return [
    [
      "Copy link for others (with the token)",
      () => copyLink(shell, true),
      "Opens in any browser. Whoever has it can use this server.",
    ],
    [
      "Copy link for this browser",
      () => copyLink(shell),
      "Without the token: a browser that never opened it is refused.",
    ],
  ];
}

const EDGE = 48; // pixels at either end of the tabs, where they fade
const NAMES = { auto: "as the system", light: "light", dark: "dark" };
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

export function showTheme({ theme, parts: { themeButton } }) {
  const name = NAMES[theme.choice];
  themeButton.textContent = SIGNS[theme.choice];
  themeButton.title = `Colours: ${name} (t)`;
  themeButton.setAttribute("aria-label", `Colours: ${name}`);
}

export function showBar(shell) {
  const { known, parts } = shell;
  views.forEach((view, at) => {
    const chosen = view === known;
    parts.tabs[at].setAttribute("aria-selected", String(chosen));
    parts.tabs[at].tabIndex = chosen ? 0 : -1;
  });
  showTab(shell);
  parts.stage.setAttribute("aria-labelledby", `tab-${known.name}`);
  parts.hint.textContent = known.hint;
  parts.bar.classList.toggle("bare", known.needs !== "trace");
  parts.levels.hidden = Boolean(known.tokensOnly);
  parts.levels.show(shell.level);
  parts.picker.value = shell.traceId() ?? "";
  showEntries(shell);
  shell.sentence.hidden = known.needs !== "trace" || !shell.reading.possible;
  parts.proof.show(shell.trace, shell.state.get().call);
  document.title = `${known.title} – regard`;
}

/** On a narrow page the tabs scroll: a tab that has just been opened is brought into sight. */
function showTab(shell) {
  const { known } = shell;
  if (shell.tabbed === known) return;
  shell.tabbed = known;
  const tab = shell.parts.tabs[views.indexOf(known)];
  const list = /** @type {HTMLElement} */ (tab.parentElement);
  const left = tab.offsetLeft - list.offsetLeft;
  const right = left + tab.offsetWidth;
  if (left < list.scrollLeft + EDGE) list.scrollLeft = left - EDGE;
  else if (right > list.scrollLeft + list.clientWidth - EDGE) list.scrollLeft = right - list.clientWidth + EDGE;
}

/** Which text of the batch. */
function showEntries(shell) {
  const count = shell.trace?.batch ?? 1;
  const options = Array.from({ length: count }, (_, i) => [i, `${i + 1} of ${count}`]);
  const changed = (entry) => shell.state.set({ ...ofTrace(shell.traceId()), entry: Number(entry) || null });
  shell.parts.entryBox.replaceChildren(
    ...(count > 1 ? [choice("Text", options, shell.state.get().entry ?? 0, changed)] : []),
  );
}

/** A button that opens a list of things to do: `items` are [text, run] or [text, run, a second line]; the element has `open()`. */
function menu(title, items) {
  const list = el("div.menu", { role: "menu", "aria-label": title, popover: "auto", "data-arrows": true });
  const button = el("button.quiet", { "aria-haspopup": "menu" }, title);
  button.popoverTargetElement = list; // the browser opens it, closes it on Escape or a click elsewhere, and says which
  const choose = (run) => {
    list.hidePopover();
    run();
  };
  const buttons = items.map(([text, run, about], at) => {
    const attributes = { role: "menuitem", autofocus: at === 0, onclick: () => choose(run) };
    return el("button", attributes, text, about ? el("small", about) : null);
  });
  list.append(...buttons);
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") event.stopPropagation(); // it closes the menu, and nothing else
    if (!step) return;
    buttons[(buttons.indexOf(event.target) + step + buttons.length) % buttons.length].focus();
    event.preventDefault();
  });
  const holder = el("div.holder", button, list);
  holder.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !holder.contains(/** @type {Node} */ (event.relatedTarget))) list.hidePopover();
  });
  return Object.assign(holder, { open: () => list.showPopover() });
}

// The badge: whether what is shown is what the model computed, and how far weights times values are from it, by call.

const WORDS = { true: "checked", false: "do not match the model", null: "not checked" };
const MEANINGS = {
  true:
    "These are the weights the model used: multiplied with its values they give what the model computed, up to rounding. " +
    "Why the model used them is another question.",
  false: "Multiplied with the model's values, these weights do not give what the model computed: do not rely on them.",
  null: "Whether the model used exactly these weights is not known: its output was not recorded, or the values are alike.",
};

/** The verdict in words: a number that a trace's file states, and cannot be measured again, is told from a proof.
 *
 * @param {Fidelity} fidelity
 */
export function verdict({ kept, word } = {}) {
  const known = kept ?? null;
  if (known === null && word === "recorded") return "recorded, not checked here";
  return WORDS[String(known)] + (word ? ` (${word})` : "");
}

function proofButton() {
  const { button, dialog, show: say } = proofBadge("Proof");
  const holder = el("div.holder", button, dialog);
  const show = (trace, callId) => {
    holder.hidden = !trace;
    if (!trace) return;
    const call = trace.calls.find((one) => one.id === callId);
    const faith = call ? call.fidelity : { kept: trace.faithful, error: worst(trace), word: commonWord(trace) };
    const words = [el("span.badge-subject", "Weights "), verdict(faith)];
    say({ ...faith, words, title: MEANINGS[String(faith.kept ?? null)], about: explained(trace) });
    button.setAttribute("aria-label", String(button.textContent)); // on a phone only the verdict has room
  };
  return Object.assign(holder, { show });
}

/** What the first call that has a remark on its fidelity says, where its verdict is that of the trace. */
function commonWord(trace) {
  const same = trace.calls.filter((call) => (call.fidelity?.kept ?? null) === (trace.faithful ?? null));
  return same.map((call) => call.fidelity?.word).find(Boolean) ?? "";
}

function worst(trace) {
  const errors = trace.calls.map((call) => call.fidelity?.error).filter((error) => error != null);
  return errors.length ? Math.max(...errors) : null;
}

function explained(trace) {
  const figure = (x) => (x == null ? "–" : number(x));
  const rows = trace.calls.map(({ name, kind, heads, queries, keys, origin, fidelity = /** @type {any} */ ({}) }) => {
    const compared = fidelity.rows == null ? "–" : `${fidelity.rows} of ${queries}`;
    const figures = [compared, figure(fidelity.error), figure(fidelity.budget), verdict(fidelity)];
    return { kept: fidelity.kept, cells: [name, kind, heads, queries, keys, origin, ...figures] };
  });
  const titles = ["layer", "kind", "heads", "queries", "keys", "computed by", "rows compared", "error", "allowed", "verdict"];
  const words =
    "The weights are computed from the queries and keys the model used. Multiplied with its values they must give what " +
    "the model gave: the error is |W·v − out| / |out|, and “allowed” is what rounding explains. With more keys than values " +
    "are wide, weights could differ in the null space of V without a change of W·v; those of queries and keys do not.";
  return [
    el("h2", "Are these the weights the model used?"),
    el("p", MEANINGS[String(trace.faithful ?? null)]),
    el("p.quietly", words),
    callTable(titles, rows),
  ];
}

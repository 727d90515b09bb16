// The elements of the page: one row with everything that comes before the picture, the view, and one line below it.

import { callTable, choice, el, number, proofBadge, segments } from "../draw/elements.js";
import { groups } from "../views/index.js";
import { copyLink, exportView, legendLine } from "./export.js";
import { ofTrace } from "./state.js";

/** Build them into the shell's root; what they do is asked of `shell`. */
export function pageLayout(shell) {
  const menus = Object.entries(groups).map(([name, members]) =>
    menu(
      name,
      members.map((view) => [view.title, () => shell.state.set({ view: view.name }), view.hint, view.name]),
    ),
  );
  const list = el("nav.tabs", { "aria-label": "Views" }, ...menus);
  const themeButton = el("button", { onclick: () => shell.theme.next() });
  const shareMenu = menu("Share", [
    ...linkItems(shell),
    ["Picture as PNG", () => exportView(shell, "png")],
    ["Picture as SVG", () => exportView(shell, "svg")],
    ["Numbers as CSV", () => exportView(shell, "csv")],
  ]);
  const help = { "aria-label": "Keyboard shortcuts and terms", title: "Keyboard shortcuts and terms (?)" };
  const helpButton = el("button.quiet", { ...help, onclick: () => shell.keyboard.help() }, "?");
  const settings = el(
    "button.quiet.fold",
    { "aria-expanded": "false", onclick: () => shell.unfold(!shell.root.classList.contains("unfolded")) },
    "Settings",
  );
  const tools = el("div.tools", shareMenu, settings, helpButton);
  const meaning = "A trace is what a model attended to while it read or wrote one text";
  const picker = el("select", { "aria-label": "Trace", title: meaning, onchange: () => shell.pick(picker.value) });
  const levels = segments("Level", { token: "Tokens", word: "Words" }, "token", (level) =>
    shell.state.set({ level: level === "word" ? "word" : null }),
  );
  const entryBox = el("span");
  const largeButton = el("button", { title: "For the back of a lecture hall (b)", onclick: () => shell.present() });
  const tourButton = el("button", { onclick: () => [shell.unfold(false), shell.tour.start()] }, "Tour");
  const bar = el("div.bar", el("label.field", el("span", "Trace"), picker), entryBox, levels);
  bar.append(themeButton, largeButton, tourButton);
  const form = el("div.form-place");
  const alert = el("div.alert", { role: "alert", hidden: true });
  const stage = el("div.stage", { role: "region", id: "regard-view", tabIndex: -1 });
  const [sentence, legend, proof] = [el("p.said"), el("div.legend"), proofButton()];
  const foot = el("div.foot", sentence, legend, proof);
  // In a notebook the headings and landmarks are the notebook's.
  const [brand, header, main] = shell.page
    ? ["h1.brand", "header.top", "main.rest"]
    : ["span.brand", "div.top", "div.rest"];
  const skip = el("button.skip", { onclick: () => stage.focus() }, "To the picture");
  const row = el("div.row", form);
  shell.root.replaceChildren(
    el(header, skip, el(brand, "regard"), list, tools),
    el(main, row, bar, alert, stage, foot),
  );
  return {
    ...{ menus, themeButton, largeButton, shareMenu, picker, levels, entryBox, proof, bar, alert, stage },
    ...{ settings, form, sentence, legend, row },
  };
}

const LOCAL = new Set(["127.0.0.1", "localhost", "[::1]"]);

/** Links to what is shown. A server asks for its token: the link without it opens where the token is known already. */
function linkItems(shell) {
  if (!shell.page || shell.source.holds) return [["Copy a link to this", () => copyLink(shell)]];
  return [
    [
      "Copy link for others (with the token)",
      () => copyLink(shell, true),
      LOCAL.has(location.hostname)
        ? "Opens in browsers of this computer only, while this server runs."
        : "Opens wherever this server is reached. Whoever has it can use this server.",
    ],
    [
      "Copy link for this browser",
      () => copyLink(shell),
      "Without the token: a browser that never opened it is refused.",
    ],
  ];
}

const NAMES = { auto: "as the system", light: "light", dark: "dark" };
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

export function showTheme({ theme, root, parts: { themeButton, largeButton } }) {
  const name = NAMES[theme.choice];
  themeButton.textContent = `${SIGNS[theme.choice]} Colours: ${name}`;
  themeButton.title = `Colours: ${name} (t)`;
  largeButton.textContent = root.classList.contains("large") ? "Usual size" : "Lecture size";
}

export function showBar(shell) {
  const { known, parts } = shell;
  Object.entries(groups).forEach(([name, members], at) => {
    const [button, list] = parts.menus[at].children;
    const open = members.includes(known);
    button.replaceChildren(name, open ? el("b", ` ${known.title}`) : "");
    button.toggleAttribute("data-open", open);
    for (const item of list.children) {
      const view = members.find((one) => one.name === item.dataset.name);
      item.setAttribute("aria-current", String(view === known));
      item.hidden = Boolean(view && shell.source.holds && shell.missing(view));
    }
    parts.menus[at].hidden = [...list.children].every((item) => item.hidden);
  });
  parts.stage.setAttribute("aria-label", known.title);
  for (const one of [parts.picker.parentElement, parts.entryBox]) one.hidden = known.needs !== "trace";
  parts.levels.hidden = Boolean(known.tokensOnly) || known.needs !== "trace";
  parts.levels.show(shell.level);
  parts.picker.value = shell.traceId() ?? "";
  showEntries(shell);
  parts.row.hidden = known.needs !== "trace" || !shell.sentence.possible;
  parts.proof.show(known.needs === "trace" ? shell.trace : null, shell.state.get().call);
  document.title = `${known.title} – regard`;
  showFoot(shell);
}

/** The line under the picture: what it says, what its colours mean, and whether the weights are proved. */
export function showFoot({ known, parts, view, palettes, theme, trace }) {
  const said = view?.sentence?.() || known.hint;
  const cut = known.needs === "trace" && trace?.made?.cut;
  const note = cut ? `The first ${trace.made.read} of ${cut} tokens; the rest was not read. ` : "";
  if (parts.sentence.textContent !== note + said) parts.sentence.textContent = note + said;
  parts.legend.replaceChildren(...legendLine(view?.legend?.() ?? null, palettes[theme.shown]));
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

/** A button that opens a list of things to do: `items` are [text, run, a second line, a name]; the element has `open()`. */
function menu(title, items) {
  const list = el("div.menu", { role: "menu", "aria-label": title, popover: "auto", "data-arrows": true });
  const button = el("button.quiet", { "aria-haspopup": "menu" }, title);
  button.popoverTargetElement = list; // the browser opens it, closes it on Escape or a click elsewhere, and says which
  const choose = (run) => {
    list.hidePopover();
    run();
  };
  const buttons = items.map(([text, run, about, name], at) => {
    const attributes = { role: "menuitem", autofocus: at === 0, "data-name": name, onclick: () => choose(run) };
    return el("button", attributes, text, about ? el("small", about) : null);
  });
  list.append(...buttons);
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") event.stopPropagation(); // it closes the menu, and nothing else
    if (!step) return;
    const shown = buttons.filter((button) => !button.hidden);
    shown[(shown.indexOf(event.target) + step + shown.length) % shown.length].focus();
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
  const titles = "layer,kind,heads,queries,keys,computed by,rows compared,error,allowed,verdict".split(",");
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

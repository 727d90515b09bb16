// What the header and the bar below it show: the open tab, the trace and its text, the level, the proof, the colours.
import { choice } from "../draw/dom.js";
import { views } from "../views/index.js";
import { ofTrace } from "./trace_state.js";

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

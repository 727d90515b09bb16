// The keys that work in every view.
import { keyOfView, views } from "../views/index.js";

/** @returns {KeyBinding[]} */
export function pageShortcuts(shell) {
  const digits = views.map((view, at) => ({
    key: keyOfView(at),
    text: view.title,
    run: () => shell.state.set({ view: view.name }),
  }));
  return [
    ...digits,
    {
      key: "w",
      text: "words or tokens",
      run: () => shell.state.set({ level: shell.level === "word" ? null : "word" }),
    },
    { key: "t", text: "light, dark, or as the system", run: () => shell.theme.next() },
    { key: "r", text: "another text", run: () => shell.reading.open() },
    { key: "/", text: "type a sentence", run: () => shell.sentence.focus() },
    { key: "e", text: "export", run: () => shell.parts.exportMenu.open() },
    { key: "b", text: "large type, for a lecture hall", run: () => shell.present() },
    { key: "?", text: "this list", run: () => shell.keyboard.help() },
  ];
}

/** The arrow keys go from tab to tab. @param {HTMLElement[]} tabs */
export function rove(tabs, event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const at = (tabs.indexOf(event.target) + step + tabs.length) % tabs.length;
  tabs[at].focus();
  tabs[at].click();
}

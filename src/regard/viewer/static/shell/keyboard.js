// Every shortcut, in one place: who has which key, and the list that "?" opens.
import { terms } from "../data/tokens.js";
import { el } from "../draw/elements.js";
import { keyOfView, views } from "../views/index.js";

const TYPING = new Set(["INPUT", "TEXTAREA", "SELECT"]);

/** A binding is {key: "ArrowUp", shift?: true, text: "what it does", run(event)}; `text` is for the list.
 *
 * `scope` hears the keys: the document of a page, the element of a widget.
 */
export function makeKeyboard(scope, root) {
  const groups = new Map();
  const dialog = el("dialog.help", { "aria-label": "Keyboard shortcuts and terms" });
  root.append(dialog);

  const help = () => {
    dialog.replaceChildren(
      el("h2", { tabIndex: -1, autofocus: true }, "Keyboard"), // the focus, or the dialog opens scrolled to its button
      ...[...groups].flatMap(([title, bindings]) => {
        const rows = bindings.filter((binding) => binding.text);
        return rows.length ? [el("h3", title), el("dl", ...rows.flatMap(entry))] : [];
      }),
      el("h3", "Terms: what a head does"),
      el("dl.terms", ...terms().flatMap(([name, meaning]) => [el("dt", name), el("dd", meaning)])),
      el("button", { onclick: () => dialog.close() }, "Close"),
    );
    dialog.showModal();
    dialog.scrollTop = 0;
  };

  const pressed = (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (dialog.open || event.target.closest?.("dialog")) return;
    if (TYPING.has(event.target.tagName) && takes(event.target, event.key)) return;
    if (["Enter", " "].includes(event.key) && event.target.closest?.("button, a, summary")) return; // it is pressed
    const plain = event.key.length === 1; // "?" is shift and something on every keyboard
    for (const bindings of [...groups.values()].reverse()) {
      const found = bindings.find(
        (binding) => binding.key === event.key && (plain || Boolean(binding.shift) === event.shiftKey),
      );
      // Arrows belong to a list, a tab or a slider while it has the focus.
      if (found && !(event.key.startsWith("Arrow") && event.target.closest?.("[data-arrows]"))) {
        event.preventDefault();
        found.run(event);
        return;
      }
    }
  };
  scope.addEventListener("keydown", pressed);

  return {
    /** The bindings of one group, for as long as the returned function is not called. */
    add(title, bindings) {
      groups.set(title, bindings);
      return () => groups.delete(title);
    },
    help,
    close: () => scope.removeEventListener("keydown", pressed),
  };
}

/** Whether this field uses the key itself: a tick box leaves letters and digits to the page. */
function takes(field, key) {
  if (key === "Escape") return false;
  if (field.type === "checkbox") return key === " ";
  if (field.type === "range" || field.tagName === "SELECT") return key.length > 1 || field.tagName === "SELECT";
  return true;
}

const NAMES = { ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→", " ": "Space", Escape: "Esc" };

function entry(binding) {
  const key = binding.shown ?? NAMES[binding.key] ?? binding.key;
  return [el("dt", el("kbd", binding.shift ? `Shift ${key}` : key)), el("dd", binding.text)];
}

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
    { key: "o", text: "settings", run: () => shell.unfold(!shell.root.classList.contains("unfolded")) },
    { key: "/", text: "type a sentence", run: () => shell.sentence.focus() },
    { key: "e", text: "share", run: () => shell.parts.shareMenu.open() },
    { key: "b", text: "large type, for a lecture hall", run: () => shell.present() },
    { key: "?", text: "this list", run: () => shell.keyboard.help() },
  ];
}

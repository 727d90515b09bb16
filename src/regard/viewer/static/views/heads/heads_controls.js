// The controls of the Heads view, and its keys.
import { choice, el, slider, tick } from "../../draw/dom.js";
import { headButtons } from "../../draw/head_buttons.js";
import { compareLayers, stepOther } from "./layer_comparison.js";

export const LEAST = 0.05; // of the weight

/** `mute(name, on)` leaves "first" or "special" keys out; `compare(on)` shows a second layer; `openMaps()` two as maps.
 *
 * @param {StateStore} state
 */
export function headsControls(state, { mute, compare, openMaps }) {
  const [callBox, otherBox] = [el("span"), el("span.other-layer", { hidden: true })];
  const comparison = tick("Compare layers", false, compare, "A second layer beside the first (c)");
  const buttons = headButtons((chosen) => state.set({ heads: chosen }));
  const mass = slider(
    "Strongest links",
    [LEAST, 1, 0.05],
    1,
    (x) => (x >= 1 ? "all" : `${Math.round(100 * x)} % of the weight`),
    (mass) => state.set({ mass: mass >= 1 ? null : mass }),
    "Of each query and head only the strongest links are drawn, until they hold this much of its weight",
  );
  const sink = tick(
    "Hide first token",
    false,
    (on) => mute("first", on),
    "Leave the first token out: much weight often rests on it for want of a better place (m)",
  );
  const specialName = el("span");
  const special = tick(specialName, false, (on) => mute("special", on), "Leave special tokens out (s)");
  /** Named by the special tokens of this text; hidden where it has none. */
  const showSpecial = (labels, on) => {
    special.hidden = !labels.length;
    specialName.textContent = `Hide ${labels.slice(0, 3).join(", ")}`;
    special.show(on);
  };
  const partBox = el("span");
  const title = "One head of two layers side by side, in the tab Map";
  const maps = el("button", { type: "button", title, onclick: openMaps }, "Compare as maps");
  // On a phone these are folded away: the picture comes first.
  const more = el("div.more-controls", {}, maps, buttons, mass, sink, special, partBox);
  const fold = el(
    "button.fold",
    {
      type: "button",
      "aria-expanded": "false",
      onclick: () => fold.setAttribute("aria-expanded", String(root.classList.toggle("unfolded"))),
    },
    "Settings",
  );
  const root = el("div.controls", {}, callBox, comparison, otherBox, fold, more, buttons.every);
  let known = "";
  /** The menus of the layer and of a second one; made anew only where `stamp` is another: one of them may be in use. */
  const showLayers = (stamp, first, second) => {
    if (stamp === known) return;
    known = stamp;
    const held = [callBox, otherBox].find((box) => box.contains(document.activeElement));
    callBox.replaceChildren(first);
    otherBox.replaceChildren(...(second ? [second] : []));
    otherBox.hidden = !second;
    held?.querySelector("select")?.focus();
  };
  return { root, more, comparison, showLayers, buttons, mass, sink, showSpecial, partBox };
}

/** Of a text of several sentences, a choice from which to which; returns its pairs, "0-1". @returns {string[]} */
export function showPartChoice(box, { querySide, keySide, state, context }) {
  const parts = [...new Set([...querySide.parts, ...keySide.parts])].filter((part) => part >= 0);
  if (parts.length < 2) {
    box.replaceChildren();
    return [];
  }
  const name = (part) => "AB"[part] ?? String(part);
  const pairs = parts.flatMap((a) => parts.map((b) => [`${a}-${b}`, `${name(a)} → ${name(b)}`]));
  const changed = (part) => context.state.set({ part: part || null });
  box.replaceChildren(choice("Part", [["", "all sentences"], ...pairs], state.part ?? "", changed));
  return pairs.map(([pair]) => pair);
}

/** @returns {KeyBinding[]} */
export function headsKeys(view) {
  const set = (patch) => view.context.state.set(patch);
  return [
    { key: "ArrowDown", text: "next token", run: () => view.pointer.step(1) },
    { key: "ArrowUp", text: "previous token", run: () => view.pointer.step(-1) },
    { key: "ArrowLeft", text: "the queries’ column", run: () => view.pointer.cross("query") },
    { key: "ArrowRight", text: "the keys’ column", run: () => view.pointer.cross("key") },
    { key: "Enter", text: "pin the token", run: () => view.pointer.hover && view.toggle(view.pointer.hover) },
    {
      key: "Enter",
      shift: true,
      text: "pin one more token",
      run: () => view.pointer.hover && view.toggle(view.pointer.hover, true),
    },
    { key: "Escape", text: "unpin all", run: () => view.unpin() },
    { key: "]", text: "next layer", run: () => view.layer(1) },
    { key: "[", text: "previous layer", run: () => view.layer(-1) },
    { key: "c", text: "compare two layers", run: () => compareLayers(view, view.panels.length < 2) },
    { key: "}", text: "next second layer", run: () => stepOther(view, 1) },
    { key: "{", text: "previous second layer", run: () => stepOther(view, -1) },
    { key: ".", text: "next head alone", run: () => view.isolate(1) },
    { key: ",", text: "previous head alone", run: () => view.isolate(-1) },
    { key: "a", text: "all heads", run: () => set({ heads: null }) },
    {
      key: "m",
      text: "hide the first token",
      run: () => view.mute("first", !view.mutes.includes("first")),
    },
    {
      key: "s",
      text: "hide special tokens",
      run: () => view.mute("special", !view.mutes.includes("special")),
    },
    { key: "ArrowDown", shift: true, text: "keys down", run: () => view.pointer.moveKeys(3) },
    { key: "ArrowUp", shift: true, text: "keys up", run: () => view.pointer.moveKeys(-3) },
  ];
}

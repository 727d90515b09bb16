// The tokens of the Generation view: those that are looked at, and a button for each that was written.
import { el } from "../../draw/dom.js";
import { given } from "./prompt_split.js";

const SPANS = 1500; // tokens of the text that are laid out; of a longer one, the last so many

/** {first: the first token laid out, read: a span for each from there on, written: buttons}. */
export function tokenTexts(view) {
  const { labels } = view.keySide;
  const first = Math.max(0, labels.length - SPANS);
  const read = labels
    .slice(first)
    .map((label, at) =>
      el(isWritten(view, at + first) ? "span.token.made" : "span.token", { "data-at": at + first }, label),
    );
  const choose = (step) => () => view.context.state.set({ step });
  const written = view.written.map(({ label }, at) =>
    el("button.token", { type: "button", tabIndex: -1, onclick: choose(at) }, label),
  );
  return { first, read, written };
}

/** Whether a label of the keys was written by the model, not given to it: a decoder is given its first token. */
function isWritten({ call, keySide, trace }, at) {
  return call.kind === "self" && keySide.groups[at][0] >= given(trace, call);
}

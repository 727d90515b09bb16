// The badge of contributions: whether they add up to what the heads gave to the answer, and the error of every call.
import { el } from "../../draw/dom.js";
import { number } from "../../draw/numbers.js";

const WORDS =
  "A contribution is C = w · (g · v): the weight of a key, times what its value does to the answer’s score, with g the " +
  "gradient of the score at the head’s output o. For every query the contributions of all keys must add up to g · o, " +
  "which is computed from the output that the model gave: Σ C = g · o. The error is |Σ C − g · o| over |g| · |o|, of the " +
  "worst head. So the parts are complete. That the whole is g · o and not the effect of removing the head is another " +
  "matter: a gradient sees small changes, and Effects measures the rest.";

/** A button that says it in a word; pressed, it explains and shows every call. */
export function contributionProof() {
  const dialog = el("dialog.proof", { "aria-label": "Do the contributions add up?" });
  const button = el("button.badge", { type: "button", "aria-haspopup": "dialog", onclick: () => dialog.showModal() });
  const holder = el("span.holder", { hidden: true });
  /** @param {Answers | null} answers @param {Trace} trace @param {string | null} callId */
  const show = (answers, trace, callId) => {
    const call = answers?.calls.find((one) => one.id === callId) ?? worst(answers);
    holder.hidden = !call;
    if (call && !button.isConnected) holder.append(button, dialog);
    if (!call) holder.replaceChildren();
    if (!answers || !call) return;
    button.dataset.kept = String(call.kept);
    button.replaceChildren(
      call.kept ? "Contributions add up" : "Contributions do not add up",
      el("span.badge-error", {}, ` · error ${number(call.error)}`),
    );
    button.title = "For every query, the contributions of all keys must add up to g · o";
    const close = el("button", { type: "button", onclick: () => dialog.close() }, "Close");
    dialog.replaceChildren(
      el("h2", {}, "Do the contributions add up?"),
      el("p", {}, WORDS),
      table(answers, trace),
      close,
    );
  };
  return Object.assign(holder, { show });
}

function worst(answers) {
  return answers?.calls.reduce((most, one) => (most && most.error >= one.error ? most : one), null) ?? null;
}

function table(answers, trace) {
  const rows = trace.calls.map((call) => {
    const found = answers.calls.find((one) => one.id === call.id);
    const cells = found
      ? [number(found.error), number(found.budget), found.kept ? "adds up" : "does not add up"]
      : ["–", "–", answers.missing[call.id] ?? "not computed"];
    return el(
      "tr",
      { "data-kept": String(found?.kept ?? null) },
      el("td", {}, call.name),
      ...cells.map((cell) => el("td", {}, cell)),
    );
  });
  const titles = ["layer", "error", "allowed", "verdict"].map((title) => el("th", { scope: "col" }, title));
  return el(
    "div.scroll",
    { tabIndex: 0, role: "region", "aria-label": "Every call" },
    el("table", {}, el("thead", {}, el("tr", {}, ...titles)), el("tbody", {}, ...rows)),
  );
}

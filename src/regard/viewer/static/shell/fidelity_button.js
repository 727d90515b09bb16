// The badge: whether what is shown is what the model computed, and how far weights times values are from it, by call.
import { el } from "../draw/dom.js";
import { number } from "../draw/numbers.js";

const WORDS = { true: "checked", false: "do not match the model", null: "not checked" };
const MEANINGS = {
  true:
    "These are the weights the model used: multiplied with its values they give what the model computed, up to rounding. " +
    "Why the model used them is another question.",
  false: "Multiplied with the model's values, these weights do not give what the model computed: do not rely on them.",
  null: "Whether the model used exactly these weights was not checked: its values or its output were not recorded.",
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

/** A button that says it in a word; pressed, it shows the table. */
export function proofButton() {
  const dialog = el("dialog.proof", { "aria-label": "Proof" });
  const button = el("button.badge", { type: "button", "aria-haspopup": "dialog", onclick: () => dialog.showModal() });
  const holder = el("div.holder", {}, button, dialog);
  const show = (trace, callId) => {
    holder.hidden = !trace;
    if (!trace) return;
    const call = trace.calls.find((one) => one.id === callId);
    const faith = call ? call.fidelity : { kept: trace.faithful, error: worst(trace), word: commonWord(trace) };
    const error = faith.error == null ? "" : ` · error ${number(faith.error)}`;
    button.dataset.kept = String(faith.kept ?? null);
    const words = verdict(faith);
    button.replaceChildren(el("span.badge-subject", {}, "Weights "), words, el("span.badge-error", {}, error));
    button.setAttribute("aria-label", `Weights ${words}${error}`); // on a phone only the verdict has room
    button.title = MEANINGS[String(faith.kept ?? null)];
    dialog.replaceChildren(...table(trace), el("button", { type: "button", onclick: () => dialog.close() }, "Close"));
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

function table(trace) {
  const rows = trace.calls.map((call) => {
    const { error, budget, kept } = call.fidelity ?? {};
    return el(
      "tr",
      { "data-kept": String(kept ?? null) },
      ...[call.name, call.kind, call.heads, call.queries, call.keys, call.origin].map((cell) =>
        el("td", {}, String(cell)),
      ),
      el("td", {}, error == null ? "–" : number(error)),
      el("td", {}, budget == null ? "–" : number(budget)),
      el("td", {}, verdict(call.fidelity)),
    );
  });
  const titles = ["layer", "kind", "heads", "queries", "keys", "computed by", "error", "allowed", "verdict"];
  const words =
    "The weights are computed from the queries and keys the model used. Multiplied with its values they must give what " +
    "the model gave: the error is |W·v − out| / |out|, and “allowed” is what rounding explains.";
  return [
    el("h2", {}, "Are these the weights the model used?"),
    el("p", {}, MEANINGS[String(trace.faithful ?? null)]),
    el("p.quietly", {}, words),
    el(
      "div.scroll",
      { tabIndex: 0, role: "region", "aria-label": "Every call" },
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { scope: "col" }, title)))),
        el("tbody", {}, ...rows),
      ),
    ),
  ];
}

// What each key contributed to the token of a step, for the Generation view: of the steps that were looked at.
import { gather } from "../../data/tokens.js";
import { Rows } from "../../data/weight_rows.js";

/** `view` has answerChoice, call, context, active (heads), keySide, written and step. */
export function contributed(view) {
  let key = "";
  /** @type {Map<string, Rows>} */
  const rows = new Map(); // one for each answer that was looked at: its row of all heads
  /** @type {Map<number, string>} */
  const steps = new Map(); // step → the answer that was last looked at there

  const close = () => {
    for (const one of rows.values()) one.close();
    rows.clear();
    steps.clear();
  };
  return {
    /** Whether contributions are shown, not weights. */
    get on() {
      return (
        view.answerChoice.on && !view.answerChoice.why && Boolean(view.answerChoice.ofCall(view.call) || steps.size)
      );
    },
    /** The state changed, or an answer has come. */
    update() {
      if (!view.answerChoice.on || key !== view.call.id) close();
      key = view.call.id;
      const { target } = view.answerChoice;
      if (!target || !view.answerChoice.ofCall(view.call) || target.position !== view.written[view.step].row) return;
      const name = view.answerChoice.key;
      steps.set(view.step, name);
      if (!rows.has(name)) rows.set(name, new Rows(view.context, view.call, 0, () => view.paint(), target));
    },
    /** The sum over the heads that are on, by label; null while it is fetched, and for steps not looked at. */
    of(step) {
      const found = rows.get(steps.get(step) ?? "");
      if (!found) return null;
      const heads = view.active.map((head) => found.row(head, view.written[step].row));
      if (heads.includes(null)) return null;
      return gather(
        heads.map((head) => /** @type {{data: Float32Array}} */ (head).data),
        view.keySide.groups,
        true,
      );
    },
    close,
  };
}

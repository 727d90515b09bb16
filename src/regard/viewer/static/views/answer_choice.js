// The switch between "looks at" and "contributes to …", with the answer that is explained: shared by several views.
import { latest } from "../data/sources.js";
import { answerName, fetchAnswers, plain, positionLabels, targetOf, whyNot } from "../data/tokens.js";
import { Rows } from "../data/weights.js";
import { choice, el, number, refill, segments } from "../draw/elements.js";

/** The words between the fields. A model without an output layer has no answer: the similarity of two vectors is explained. */
const WORDS = {
  similarity: { answer: "to", minus: "minus the similarity to", place: "Similarity of", none: "– (nothing)" },
};
const PLAIN = { answer: "The answer", minus: "rather than", place: "at", none: "–" };

/** What colours mean: `changed(on)` with whether they are contributions. */
function colours(looks, contributes, value, changed) {
  const options = {
    looks: { title: "Looks at", about: looks },
    contributes: { title: "Contributes to …", about: contributes },
  };
  return segments("Colours", options, value, (kind) => changed(kind === "contributes"));
}

export class AnswerChoice {
  /** What the server said of the chosen answer; null while it computes, and where weights are shown.
   *
   * @type {Answers | null}
   */
  answers = null;

  /** `changed()` is called when contributions can be drawn, or weights again. `always`: there is nothing to switch.
   *
   * @param {Context} context
   * @param {() => void} changed
   * @param {{always?: boolean}} options
   */
  constructor(context, changed, { always = false } = {}) {
    this.context = context;
    this.changed = changed;
    this.always = always;
    this.why = whyNot(context);
    this.asked = "";
    this.request = latest();
    const added = "Colours are contributions: what each key adds to an answer, or takes from it";
    const change = (on) => this.set(on ? {} : null);
    this.kinds = colours("Colours are weights: where each head looks", added, "looks", change);
    this.fields = el("span.answer-fields");
    this.status = el("span.answer-status", { role: "status" });
    this.proof = contributionProof();
    this.root = el("div.answer-choice", always ? null : this.kinds, this.fields, this.status, this.proof);
  }

  /** Whether contributions are asked for. */
  get on() {
    return this.always || Boolean(this.context.state.get().toward);
  }

  /** A name of what is shown: another one needs other numbers. */
  get key() {
    return this.answers ? JSON.stringify(targetOf(this.answers)) : "";
  }

  /** The parameters of requests for contributions; null where weights are shown. */
  get target() {
    return this.answers ? targetOf(this.answers) : null;
  }

  /** The rows of a call that are shown, of weights or of contributions: those of `before`, where they still are.
   *
   * @param {Rows | null} before @param {Call} call @param {() => void} arrived
   */
  rows(before, call, arrived) {
    const entry = this.context.state.get().entry ?? 0;
    const target = this.ofCall(call) && this.target;
    const key = JSON.stringify([call.id, target]);
    if (before?.key === key) return before;
    before?.close();
    return Object.assign(new Rows(this.context, call, entry, arrived, target), { key });
  }

  /** The largest contribution of a call, and its error. @param {Call} call */
  ofCall(call) {
    return this.answers?.calls.find((one) => one.id === call.id) ?? null;
  }

  get name() {
    return this.answers ? answerName(this.answers) : "";
  }

  /** The state changed. `position`: the view says where the answer stands. @param {Call | null} call */
  update(call, position = null) {
    this.call = call;
    this.kinds.show(this.on ? "contributes" : "looks");
    this.fixed = position;
    if (!this.on || this.why) {
      this.forget();
      this.show();
      return;
    }
    const given = this.context.state.get().toward ?? {};
    const own = position == null || given.position === position; // an answer chosen elsewhere is not meant here
    const place = position ?? given.position;
    const asked = { position: place, ...(own ? { answer: given.answer, minus: given.minus } : {}) };
    if (JSON.stringify(asked) !== this.asked) this.fetch(asked);
    else this.show();
  }

  forget() {
    this.request.end();
    this.asked = "";
    this.answers = null;
  }

  async fetch(asked) {
    this.forget();
    this.asked = JSON.stringify(asked);
    this.error = "";
    this.show();
    try {
      const answers = await this.request((signal) => fetchAnswers(this.context, asked, signal));
      if (!answers) return;
      this.answers = answers;
    } catch (error) {
      this.error = error.message;
    }
    this.show();
    this.changed();
  }

  set(toward) {
    const { position, answer, minus } = toward ?? {};
    const kept = Object.entries({ position, answer, minus }).filter(([, value]) => value != null);
    this.context.state.set({ toward: toward && Object.fromEntries(kept) });
  }

  // Controls

  show() {
    const { on, why, answers } = this;
    this.proof.showOf(on ? answers : null, this.call?.id ?? null);
    const waits = on && !why && !answers && !this.error;
    const missing = (on && answers && this.call && answers.missing[this.call.id]) || "";
    this.status.replaceChildren(
      ...(waits ? [el("progress", { "aria-label": "Computing" }), " The model runs forward and backward …"] : []),
      on ? why || this.error || missing : "",
    );
    if (on && !why && !answers) return; // while it computes, and where it failed, the fields stay
    const stamp = on && answers ? JSON.stringify([answers, this.fixed]) : "";
    refill(this.fields, stamp, () => (answers && on && !why ? this.fieldsOf(answers) : []));
  }

  /** @param {Answers} answers */
  fieldsOf(answers) {
    const now = targetOf(answers);
    const listed = answers.answers.map(({ id, piece, share, score }) => [
      String(id),
      `${plain(piece)}  ${number(share ?? score)}`,
    ]);
    const words = { ...PLAIN, ...(answers.kind === "next token" ? { place: "after" } : WORDS[answers.kind]) };
    const similar = answers.kind === "similarity";
    const place = this.placeField(answers, now, words.place);
    const first = similar && !place.length ? "Similarity to" : this.always || similar ? words.answer : "";
    const answer = choice(first, listed, answers.answer, (id) => this.set({ ...now, answer: Number(id) }));
    const less = choice(words.minus, [["", words.none], ...listed], answers.minus ?? "", (id) =>
      this.set({ ...now, minus: id === "" ? null : Number(id) }),
    );
    answer.lastElementChild?.setAttribute("aria-label", "Answer");
    return similar ? [...place, answer, less] : [answer, less, ...place];
  }

  /** Where the answer stands, unless the view says it or there is only one place. */
  placeField({ positions, position }, now, label) {
    if (positions < 2 || this.fixed != null) return [];
    const labels = positionLabels(this.context.trace, positions).map((label, at) => [String(at), `${at} ${label}`]);
    return [
      choice(label, labels, position, (at) => this.set({ position: Number(at) }), {
        title: `Position ${now.position} of ${positions}`,
      }),
    ];
  }

  close() {
    this.request.end();
  }
}

const VERDICTS =
  "A contribution is C = w · (g · v): the weight of a key, times what its value does to the answer’s score, with g the " +
  "gradient of the score at the head’s output o. For every query the contributions of all keys must add up to g · o, " +
  "which is computed from the output that the model gave: Σ C = g · o. The error is |Σ C − g · o| over |g| · |o|, of the " +
  "worst head. So the parts are complete. That the whole is g · o and not the effect of removing the head is another " +
  "matter: a gradient sees small changes, and Effects measures the rest.";

/** Whether they add up, with the error of the call that is shown, or of the worst. */
function contributionProof() {
  const badge = el("span.badge", { title: VERDICTS, hidden: true });
  /** @param {Answers | null} answers @param {string | null} callId */
  const show = (answers, callId) => {
    const worst = answers?.calls.reduce(
      (most, one) => (most && most.error >= one.error ? most : one),
      answers.calls[0],
    );
    const call = answers?.calls.find((one) => one.id === callId) ?? worst;
    badge.hidden = !call;
    if (!call) return;
    badge.dataset.kept = String(call.kept);
    badge.textContent = `Contributions ${call.kept ? "" : "do not "}add up · error ${number(call.error)}`;
  };
  return Object.assign(badge, { showOf: show });
}

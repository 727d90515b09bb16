// The switch between "looks at" and "contributes to …", with the answer that is explained: shared by several views.
import { answerName, fetchAnswers, positionLabels, targetOf, whyNot } from "../../data/answers.js";
import { plain } from "../../data/tokens.js";
import { choice, el, segments } from "../../draw/dom.js";
import { number } from "../../draw/numbers.js";
import { contributionProof } from "./contribution_proof.js";

const OTHER = "?"; // the option for a word that is not listed
/** The words between the fields. A model without an output layer has no answer: the similarity of two vectors is explained. */
const WORDS = {
  similarity: { answer: "to", minus: "minus the similarity to", place: "Similarity of", none: "– (nothing)" },
};
const PLAIN = { answer: "The answer", minus: "rather than", place: "at", none: "–" };

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
    this.ending = new AbortController();
    const kinds = [
      ["looks", "Looks at", "Colours are weights: where each head looks"],
      [
        "contributes",
        "Contributes to …",
        "Colours are contributions: what each key adds to an answer, or takes from it",
      ],
    ];
    this.kinds = segments("Colours", kinds, "looks", (kind) => this.set(kind === "looks" ? null : {}));
    this.fields = el("span.answer-fields");
    this.status = el("span.answer-status", { role: "status" });
    this.proof = contributionProof();
    this.root = el("div.answer-choice", {}, always ? null : this.kinds, this.fields, this.status, this.proof);
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
    this.ending.abort();
    this.asked = "";
    this.answers = null;
  }

  async fetch(asked) {
    this.forget();
    this.asked = JSON.stringify(asked);
    this.ending = new AbortController();
    const { signal } = this.ending;
    this.error = "";
    this.show();
    try {
      const answers = await fetchAnswers(this.context, asked, signal);
      if (signal.aborted) return;
      this.answers = answers;
    } catch (error) {
      if (signal.aborted || error.name === "AbortError") return;
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
    this.proof.show(on ? answers : null, this.context.trace, this.call?.id ?? null);
    const waits = on && !why && !answers && !this.error;
    const missing = (on && answers && this.call && answers.missing[this.call.id]) || "";
    this.status.replaceChildren(
      ...(waits ? [el("progress", { "aria-label": "Computing" }), " The model runs forward and backward …"] : []),
      on ? why || this.error || missing : "",
    );
    const stamp = on && answers ? JSON.stringify([answers, this.fixed]) : "";
    if (stamp === this.stamp) return;
    if (stamp || !waits) this.stamp = stamp; // while it computes, the fields stay: one of them may be in use
    if (!on || why) this.fields.replaceChildren();
    else if (answers) this.showFields(answers);
  }

  /** @param {Answers} answers */
  showFields(answers) {
    const all = () => /** @type {any[]} */ ([...this.fields.querySelectorAll("select, input")]);
    const held = all().indexOf(document.activeElement);
    const now = targetOf(answers);
    const listed = answers.answers.map(({ id, piece, share, score }) => [
      String(id),
      `${plain(piece)}  ${number(share ?? score)}`,
    ]);
    const other = answers.kind === "next token" ? [[OTHER, "another word …"]] : [];
    const words = { ...PLAIN, ...(answers.kind === "next token" ? { place: "after" } : WORDS[answers.kind]) };
    const similar = answers.kind === "similarity";
    const place = this.placeField(answers, now, words.place);
    const first = similar && !place.length ? "Similarity to" : this.always || similar ? words.answer : "";
    const answer = choice(first, [...listed, ...other], answers.answer, (id) =>
      id === OTHER ? this.askWord("word") : this.set({ ...now, answer: Number(id) }),
    );
    const less = choice(words.minus, [["", words.none], ...listed, ...other], answers.minus ?? "", (id) =>
      id === OTHER ? this.askWord("minus_word") : this.set({ ...now, minus: id === "" ? null : Number(id) }),
    );
    answer.lastElementChild?.setAttribute("aria-label", "Answer");
    this.fields.replaceChildren(...(similar ? [...place, answer, less] : [answer, less, ...place]));
    all()[held]?.focus();
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

  /** A field for a word that is not listed. */
  askWord(name) {
    const input = el("input", {
      type: "text",
      maxlength: 80,
      size: 12,
      "aria-label": "A word, then Enter",
      placeholder: "a word, Enter",
      onkeydown: (event) => event.key === "Enter" && this.findWord(name, input.value.trim()),
    });
    this.fields.append(input);
    input.focus();
  }

  async findWord(name, word) {
    if (!word || !this.answers) return;
    const now = targetOf(this.answers);
    const asked =
      name === "word" ? { position: now.position, word } : { position: now.position, answer: now.answer, [name]: word };
    try {
      this.set(targetOf(await fetchAnswers(this.context, asked, this.ending.signal)));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.error = error.message;
      this.status.replaceChildren(this.error);
    }
  }

  close() {
    this.ending.abort();
  }
}

// Sound: where in a sound a model listened: weights over the waveform, and what it heard.
//
// POST /api/listen answers {label, probabilities: {label: share}, seconds, waveform: [[least, most], …] evenly over
// the time, weights: evenly over the time, spelled?: [{letter, weights}]}. Weights are empty or null where there are none.
import { latest, samplesOf } from "../data/sources.js";
import { inks, makeBoard, onPaper, place, polyline } from "../draw/canvas.js";
import { el, exact, makeDrop, number, shareCells } from "../draw/elements.js";

/** @type {View} */
export const sound = {
  name: "sound",
  title: "Sound",
  hint: "Weights over a waveform: choose a sound, or drop a WAV or FLAC on the page",
  needs: "listen",
  mount: (root, context) => new SoundView(root, context),
};

const EDGE = { left: 34, right: 34, top: 16, bottom: 34 };

const NOTHING = "Nothing was heard yet. The model that ships knows spoken English digits.";

class SoundView {
  /** The place under the pointer, as a share of the time. @type {number | null} */
  at;
  /** @type {HTMLElement} */
  reading;
  /** @type {number} */
  frame;

  constructor(root, context) {
    this.context = context;
    /** @type {AbortController | null} */
    /** @type {any} */
    this.answer = null;
    this.at = null;
    this.asked = false;
    this.request = latest();
    const label = "Choose a sound, or drop one";
    this.drop = makeDrop(root, {
      label,
      accept: "audio/*,.wav,.flac",
      most: context.about.limits.upload,
      taken: (file) => this.listen(file),
      failed: context.fail,
    });
    this.play = el("button", { hidden: true, onclick: () => this.toggle() }, "Play");
    this.samples = el("span.samples");
    this.status = el("p.status", { role: "status" });
    this.stage = el("div.drawing");
    this.heard = el("aside.aside", { "aria-label": "What was heard" }, el("p.quietly", NOTHING));
    root.replaceChildren(
      el("div.controls", this.drop.root, this.samples, this.play, this.status),
      el("div.split", this.stage, this.heard),
    );
    this.board = makeBoard(
      this.stage,
      { role: "img", "aria-label": "The waveform, and where the model listened" },
      (pen, width, height) => this.draw(pen, width, height),
    );
    this.board.node.addEventListener("pointermove", (event) => this.point(place(event, this.board.node).x));
    this.board.node.addEventListener("pointerleave", () => this.point(null));
    this.audio = new Audio();
    this.audio.addEventListener("ended", () => this.stopped());
    this.keys = [{ key: " ", text: "play or stop", run: () => this.toggle() }];
    this.offerSamples();
  }

  /** The sounds that ship; the first is listened to at once. */
  async offerSamples() {
    const samples = await samplesOf(this.context.source, "sounds");
    this.samples.replaceChildren(
      ...samples.map(({ name, file }) => el("button.sample", { onclick: () => this.listen(file, name) }, `“${name}”`)),
    );
    const { sample } = this.settings;
    const first = samples.find(({ name }) => name === sample) ?? samples[0];
    if (first && !this.answer && !this.asked) await this.listen(first.file, first.name);
  }

  get settings() {
    return { letter: null, ...this.context.state.get().sound };
  }

  /** `name` is that of a sample. @param {Blob} file */
  async listen(file, name = "") {
    this.status.textContent = "Listening …";
    this.asked = true;
    try {
      const answer = await this.request((signal) => this.context.source.post("/api/listen", file, signal));
      if (!answer) return;
      this.answer = answer;
      this.audio.pause();
      URL.revokeObjectURL(this.audio.src);
      this.audio.src = URL.createObjectURL(file);
      this.play.hidden = false;
      this.context.state.set({ sound: name ? { ...this.context.state.get().sound, sample: name } : null });
      this.context.announce(`heard ${this.answer.label}`);
      this.show();
    } catch (error) {
      this.context.fail(error);
    } finally {
      this.status.textContent = "";
    }
  }

  toggle() {
    if (!this.answer) return;
    if (!this.audio.paused) return this.stopped();
    this.audio.currentTime = 0;
    this.audio.play().catch((error) => this.context.fail(error));
    this.play.textContent = "Stop";
    this.follow();
  }

  stopped() {
    this.audio.pause();
    this.play.textContent = "Play";
    this.board.ask();
  }

  follow() {
    if (this.audio.paused) return;
    this.board.ask();
    this.frame = requestAnimationFrame(() => this.follow());
  }

  /** The weights drawn: of the whole, or of one letter that was spelled. */
  get weights() {
    const spelled = this.answer?.spelled?.[this.settings.letter];
    return (spelled ?? this.answer)?.weights ?? [];
  }

  update() {
    if (this.answer) this.show();
    this.board.ask();
  }

  show() {
    const { label, probabilities, spelled } = this.answer;
    const most = Math.max(...Object.values(probabilities));
    const rows = Object.entries(probabilities).map(([name, share]) => shareCells(name, share, most));
    const { letter } = this.settings;
    const letters = (spelled ?? []).map((one, at) =>
      el(
        "button.word",
        {
          "aria-pressed": String(at === letter),
          onclick: () =>
            this.context.state.set({ sound: { ...this.context.state.get().sound, letter: at === letter ? null : at } }),
        },
        one.letter,
      ),
    );
    this.reading = el("p.quietly", { role: "status" });
    this.heard.replaceChildren(
      el("h2.heard", label),
      el("table.next", el("tbody", ...rows)),
      ...(letters.length ? [el("h3", "spelled"), el("p.sentence", ...letters)] : []),
      this.reading,
    );
    this.board.ask();
  }

  point(x) {
    if (!this.answer) return;
    const { width } = this.board.size;
    const share = x === null ? -1 : (x - EDGE.left) / (width - EDGE.left - EDGE.right);
    this.at = share >= 0 && share < 1 ? share : null;
    const { weights, answer } = this;
    const weight = weights[Math.floor((this.at ?? -1) * weights.length)];
    this.reading.textContent =
      this.at === null
        ? ""
        : `${(this.at * answer.seconds).toFixed(3)} s${weight === undefined ? "" : `: ${exact(weight)}`}`;
    this.board.ask();
  }

  draw(pen, width, height) {
    const { ink, soft, line, accent, font } = inks(this.stage);
    Object.assign(pen, { font: `14px ${font}`, textAlign: "center", fillStyle: soft });
    if (!this.answer) return pen.fillText("Drop a sound here.", width / 2, height / 2);
    const { waveform, seconds } = this.answer;
    const { weights } = this;
    const [wide, high] = [width - EDGE.left - EDGE.right, height - EDGE.top - EDGE.bottom];
    const most = Math.max(...weights) || 1;
    weights.forEach((weight, i) => {
      pen.fillStyle = this.context.palette.ramp(0.62 * Math.sqrt(weight / most));
      const [from, to] = [i, i + 1].map((k) => Math.round(EDGE.left + (k * wide) / weights.length));
      pen.fillRect(from, EDGE.top, to - from, high);
    });
    const loudest = Math.max(...waveform.map(([least, largest]) => Math.max(Math.abs(least), Math.abs(largest)))) || 1;
    const y = (x) => EDGE.top + high / 2 - (x / loudest) * (high / 2 - 8);
    Object.assign(pen, { strokeStyle: ink, lineWidth: Math.max(1, (wide / waveform.length) * 0.8) });
    pen.beginPath();
    waveform.forEach(([least, largest], i) => {
      const x = EDGE.left + ((i + 0.5) * wide) / waveform.length;
      pen.moveTo(x, y(largest) - 0.5);
      pen.lineTo(x, y(least) + 0.5);
    });
    pen.stroke();
    Object.assign(pen, { strokeStyle: line, fillStyle: soft, lineWidth: 1, font: `12px ${font}` });
    for (let i = 0; i <= 5; i++)
      pen.fillText(`${((seconds * i) / 5).toFixed(2)} s`, EDGE.left + (wide * i) / 5, height - 12);
    const marks = [this.at, this.audio.paused ? null : this.audio.currentTime / seconds].filter((x) => x !== null);
    Object.assign(pen, { strokeStyle: accent, lineWidth: 2 });
    for (const x of marks.map((mark) => EDGE.left + mark * wide)) polyline(pen, [x, EDGE.top, x, EDGE.top + high]);
  }

  picture() {
    if (!this.answer) return null;
    const { width, height } = this.board.size;
    return onPaper(width, height, inks(this.stage).paper, (pen) => this.draw(pen, width, height));
  }

  legend() {
    return { to: "largest", words: "weight over time" };
  }

  table() {
    const second = (i) => ((i + 0.5) * this.answer.seconds) / this.weights.length;
    return [["second", "weight"], ...this.weights.map((weight, i) => [second(i), weight])];
  }

  drawn() {
    return this.answer && { label: this.answer.label, weights: this.weights, at: this.at };
  }

  destroy() {
    this.request.end();
    cancelAnimationFrame(this.frame);
    this.audio.pause();
    URL.revokeObjectURL(this.audio.src);
    this.drop.close();
    this.board.close();
  }
}

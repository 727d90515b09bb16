// The models that run in the visitor's browser, and the requests of the HTTP API that they answer.

import { continueText } from "./beam_search.js";
import { classificationTrace, generationTrace, translationTrace } from "./live_trace.js";
import { caption, nextTokens, soundClass, textClass, translation } from "./model_answers.js";
import { OnnxModel } from "./onnx_model.js";
import { pixelsOf } from "./picture_file.js";
import { samplesOf } from "./sound_file.js";

const RATE = 8000; // samples per second of the shipped classifier of sounds

/** The requests that run a model, by path. @type {Record<string, (live: LiveModels, body: any, signal?: AbortSignal) => Promise<any>>} */
const ANSWERS = {
  "/api/translate": async (live, { models, text, beams = 5 }, signal) => ({
    translations: await live.each(models, (model, title) => translation(model, title, text, beams, signal)),
  }),
  "/api/classify": async (live, { models, text }) => ({
    classifications: await live.each(models, (model, title) => textClass(model, title, text)),
  }),
  "/api/caption": (live, file, signal) => live.captionOf(file, signal),
  "/api/listen": async (live, file) => soundClass(await live.first("listen"), await samplesOf(file, RATE), RATE),
  "/api/next": async (live, { model, text, temperature = 1 }) => ({
    next: await nextTokens(await live.model(model), text, temperature),
  }),
};
export const LIVE_PATHS = Object.keys(ANSWERS);

/** Models by name; each is fetched when it is first needed. */
export class LiveModels {
  /** `base` is the folder of the models; `runtime()` resolves to onnxruntime-web; `progress(name, share)` is told. */
  constructor(about, base, runtime, progress = (_name, _share) => {}) {
    this.about = about;
    this.models = new Map(
      about.models.map(({ name }) => [
        name,
        new OnnxModel(name, `${base}/${name}`, runtime, (received, size) => progress(name, received / size)),
      ]),
    );
    /** @type {Promise<any>} */
    this.last = Promise.resolve();
  }

  title(name) {
    const model = this.about.models.find((one) => one.name === name);
    if (!model) throw new Error(`there is no model ${name} here`);
    return model.title;
  }

  /** The model of this name, fetched. */
  async model(name) {
    this.title(name);
    return this.models.get(name).ready();
  }

  async first(task) {
    const found = this.about.models.find((model) => model.task === task);
    if (!found) throw new Error(`there is no model for this here: ${task}`);
    return this.model(found.name);
  }

  /** The answer to a POST; one after the other, as on a server. */
  post(path, body, signal) {
    const answer = this.last.then(() => {
      if (signal?.aborted) throw new DOMException("cancelled", "AbortError");
      return this.answer(path, body, signal);
    });
    this.last = answer.catch(() => {});
    return answer;
  }

  async answer(path, body, signal) {
    if (!Object.hasOwn(ANSWERS, path))
      throw new Error("This page runs without a server, and cannot do that. Install regard and run: regard view");
    return ANSWERS[path](this, body, signal);
  }

  async each(models, run) {
    const answers = [];
    for (const name of new Set(models)) answers.push(await run(await this.model(name), this.title(name)));
    return answers;
  }

  async captionOf(blob, signal) {
    const model = await this.first("caption");
    const { pixels, width, height } = await pixelsOf(blob, model.about.picture);
    const answer = await caption(model, this.title(model.name), pixels, signal);
    const picture = await new Promise((done) => {
      const reader = new FileReader();
      reader.onload = () => done(reader.result);
      reader.readAsDataURL(blob);
    });
    return { ...answer, picture, proportions: [width, height] };
  }

  /** A trace of a model over a text: {id, summary, json, arrays}. */
  async trace({ model: name, text, generate = 0 }, signal) {
    const [model, title] = [await this.model(name), this.title(name)];
    const { task } = model.about;
    if (task === "translate") return translationTrace(model, title, text, signal);
    if (task === "classify") return classificationTrace(model, title, text);
    return generationTrace(model, title, text, generate, signal);
  }

  /** The likeliest continuation of a text, for tests and pages. */
  async continued(name, text, count) {
    const model = await this.model(name);
    const { written } = await continueText(model, model.target.continued(text), count - 1);
    return model.target.running(written);
  }
}

// The shell: tabs, the trace that is looked at, its proof, and one view at a time. What a view is: types/viewer.d.ts (View).
import { fetchTrace } from "../data/sources.js";
import { callOf, callPath } from "../data/tokens.js";
import { makePalette } from "../draw/colors.js";
import { el } from "../draw/elements.js";
import { views } from "../views/index.js";
import { figureOf, linkOf, svgOf } from "./export.js";
import { makeKeyboard, pageShortcuts } from "./keyboard.js";
import { pageLayout, showBar, showFoot, showTheme } from "./layout.js";
import { makeAnnouncer, makeNotice, runStatus, watchServer } from "./messages.js";
import { sentenceForm } from "./sentence_form.js";
import { keep, kept, makeState, makeTheme, ofTrace, wordToPin } from "./state.js";
import { firstUse, makeTour } from "./tour.js";

/** Draw the viewer into `root`; returns a function that ends it. `page`: the address and all keys are ours. */
export async function start(root, source, { page = false } = {}) {
  root.classList.add("regard");
  const shell = new Shell(root, source, page);
  window.regard = testHooks(shell);
  await shell.begin();
  return () => shell.close();
}

const [LARGE, UNFOLDED] = ["regard-large", "regard-settings"]; // what a browser keeps

class Shell {
  /** @type {About} */
  about;
  /** @type {Trace | null} */
  trace;
  /** @type {MountedView | null} */
  view;
  /** @type {ReturnType<typeof sentenceForm>} */
  sentence;

  constructor(root, source, page) {
    this.root = root;
    this.source = source;
    this.page = page;
    this.state = makeState(page);
    this.palettes = { light: makePalette("light"), dark: makePalette("dark") };
    this.theme = makeTheme(root, () => this.restyle());
    this.parts = pageLayout(this);
    showTheme(this);
    this.runs = runStatus(this.parts.stage);
    this.announce = makeAnnouncer(root);
    this.notice = makeNotice(root, this.announce);
    this.keyboard = makeKeyboard(page ? document : root, root);
    this.keyboard.add("Everywhere", pageShortcuts(this));
    this.tour = makeTour({
      root,
      state: this.state,
      source,
      ready: async () => {
        await this.mounting;
        return this.trace;
      },
    });
    this.welcome = page && firstUse();
    this.stop = this.state.on((now, before) => this.changed(now, before));
    this.layers = new Map(); // the layer and heads last looked at, by model
    this.generation = 0; // counts mounts, so that an answer to an earlier one is dropped
  }

  async begin() {
    try {
      this.about = await this.source.get("/api/about");
    } catch (error) {
      this.about = { version: "", models: [], traces: [], coming: 0, views: [], opening: {}, limits: {} };
      this.fail(error);
    }
    this.restoreSize();
    this.sentence = sentenceForm(this.source, this.about, {
      made: (id) => this.added(id),
      fail: (error) => this.fail(error),
      waiting: this.runs,
    });
    this.parts.form.replaceWith(this.sentence);
    this.parts.bar.append(...this.sentence.more);
    this.listTraces();
    if (this.page && !this.source.holds) this.server = this.watch();
    if (await readLinkedText(this)) return;
    if (!viewOf(this.state.get().view)) {
      this.trace = await this.load(this.traceId(), this.state.get().entry ?? 0).catch(() => null); // mount() says why
      this.state.set({ view: this.first, ...this.about.opening }); // which may name another view
    } else this.mounting = this.mount();
    await this.mounting;
    if (this.welcome) this.tour.offer();
  }

  /** The view that is open. */
  get known() {
    return viewOf(this.state.get().view) ?? /** @type {View} */ (viewOf(this.first));
  }

  /** The view that opens where a link names none: of a trace the lines, or the map where a file holds no more. */
  get first() {
    if (!this.about.traces.length) return "translate";
    return this.trace && missingView(this, /** @type {View} */ (viewOf("heads"))) ? "map" : "heads";
  }

  listTraces() {
    const options = this.about.traces.map((trace) => el("option", { value: trace.id }, trace.title));
    if (!options.length) options.push(el("option", { value: "" }, "none yet"));
    this.parts.picker.replaceChildren(...options);
    this.parts.picker.value = this.traceId() ?? "";
  }

  traceId() {
    return this.state.get().trace ?? this.about.traces[0]?.id ?? null;
  }

  pick = (id) => this.state.set(ofTrace(id));

  /** Traces of other tabs, and those that a server which has just begun is still making, join the list as they come. */
  watch() {
    return watchServer(this.source, this.about, {
      changed: (about) => {
        this.about = about;
        this.listTraces();
      },
      lost: (error) => this.fail(error),
      back: () => {
        this.parts.alert.hidden = true;
        this.notice("The server answers again");
      },
    });
  }

  async added(id) {
    this.about = await this.source.get("/api/about");
    this.listTraces();
    const { call = null, heads = null } = this.state.get();
    if (this.trace) this.layers.set(`${this.trace.model} ${this.trace.calls.length}`, { call, heads });
    const next = await this.load(id, 0);
    const before = this.layers.get(`${next.model} ${next.calls.length}`) ?? {}; // the same layer of the same model
    this.state.set({ ...ofTrace(id), ...before, pins: wordToPin(next, before.call) });
  }

  // What changes

  changed(now, before) {
    if (!this.about) return; // `begin` mounts what the state says once the server has answered
    if (["view", "trace", "entry"].some((key) => now[key] !== before[key])) this.mounting = this.mount();
    else {
      showBar(this);
      this.view?.update(now);
      showFoot(this);
    }
  }

  restyle() {
    if (this.theme) showTheme(this);
    this.view?.update(this.state.get());
  }

  async mount() {
    const turn = ++this.generation;
    const { known } = this;
    this.view?.destroy();
    this.forgetKeys?.();
    this.view = null;
    this.parts.alert.hidden = true;
    this.parts.stage.replaceChildren();
    this.parts.stage.dataset.view = known.name;
    try {
      const { entry = 0 } = this.state.get();
      const trace = await this.load(this.traceId(), entry);
      if (turn !== this.generation) return;
      if (trace !== this.followed) this.sentence.follow(trace);
      this.followed = trace;
      this.trace = trace;
      if (trace && entry >= trace.batch) {
        this.state.set({ entry: null }); // a link to a text that this batch has not; mounts anew
        return this.mounting;
      }
    } catch (error) {
      if (turn !== this.generation) return;
      this.trace = null;
      if (known.needs === "trace" && this.listed(this.traceId())) this.fail(error);
    }
    showBar(this);
    const missing = missingView(this, known);
    if (missing) this.parts.stage.replaceChildren(missing);
    else {
      this.view = known.mount(this.parts.stage, viewContext(this));
      showFoot(this);
      if (this.view.keys) this.forgetKeys = this.keyboard.add(known.title, this.view.keys);
    }
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    const motion = [{ opacity: 0, transform: "scale(0.96)" }, { opacity: 1 }];
    if (!still) this.parts.stage.animate(motion, { duration: 180, easing: "ease-out" });
    this.announce(`${known.title}: ${known.hint}`);
  }

  /** One at a time is kept: the tokens of long texts are large. */
  async load(id, entry) {
    if (id == null) return null;
    const key = `${id}/${entry}`;
    if (this.loaded?.key !== key) this.loaded = { key, trace: await fetchTrace(this.source, id, entry) };
    return this.loaded.trace;
  }

  missing(view) {
    return missingView(this, view);
  }

  listed(id) {
    return this.about.traces.some((trace) => trace.id === id);
  }

  get level() {
    return this.state.get().level ?? "token";
  }

  fail(error) {
    if (error.name === "AbortError") return;
    const { alert } = this.parts;
    const hide = { "aria-label": "Close this message", onclick: () => (alert.hidden = true) };
    alert.replaceChildren(el("span", error.message), el("button.quiet", hide, "×"));
    alert.hidden = false;
  }

  // What can be done

  /** Everything larger, for the back of a lecture hall; again, as before. */
  present() {
    keep(LARGE, String(this.root.classList.toggle("large")));
    this.restyle();
  }

  restoreSize() {
    this.root.classList.toggle("large", this.page && kept(LARGE) === "true");
    if (this.page && kept(UNFOLDED) === "true") this.unfold(true);
    showTheme(this);
  }

  /** Show everything that can be set, or fold it away. */
  unfold(on) {
    this.root.classList.toggle("unfolded", on);
    if (this.page) keep(UNFOLDED, String(on));
    this.parts.settings.setAttribute("aria-expanded", String(on));
    this.view?.update(this.state.get());
  }

  close() {
    this.server?.close();
    this.runs.close();
    this.generation += 1;
    this.tour.stop();
    this.view?.destroy();
    this.stop();
    this.state.close();
    this.theme.close();
    this.keyboard.close();
    this.source.close?.();
    this.root.replaceChildren();
  }
}

function viewOf(name) {
  return views.find((view) => view.name === name);
}

/** @returns {Context} */
function viewContext(shell) {
  return {
    source: shell.source,
    about: shell.about,
    trace: /** @type {Trace} */ (shell.trace), // views that need none ask before they use it
    state: shell.state,
    get theme() {
      return shell.theme.shown;
    },
    get level() {
      return shell.level;
    },
    get palette() {
      return shell.palettes[shell.theme.shown];
    },
    headViews: views.filter((view) => view.showsHead),
    announce: shell.announce,
    pick: shell.pick,
    drew: () => shell.view && showFoot(shell),
    open: (id) => shell.added(id),
    sample: (task) => shell.sentence.sample(task),
    fail: (error) => shell.fail(error),
  };
}

/** A link names the model and the text as well as the trace: where the trace is not here, the model reads it again. */
async function readLinkedText(shell) {
  const { trace, model, sentence, second, generate } = shell.state.get();
  const unknown = trace != null && !shell.about.traces.some(({ id }) => id === trace);
  if (!unknown || !model || sentence == null || !shell.sentence.knows(model)) return false;
  shell.parts.stage.replaceChildren(el("div.empty", el("p", `${model} reads the text of the link …`)));
  try {
    const body = { model, text: sentence, ...(second ? { second } : {}), ...(generate ? { generate } : {}) };
    const { id } = await shell.source.post("/api/traces", body);
    shell.about = await shell.source.get("/api/about");
    shell.listTraces();
    if (id === trace) shell.mounting = shell.mount();
    else shell.state.set({ trace: id });
    await shell.mounting;
    return true;
  } catch (error) {
    shell.fail(error);
    return false;
  }
}

/** What stands instead of a view that has nothing to show: why, and what to do about it; or null. @param {View} view */
function missingView(shell, view) {
  if (view.needs === "trace" && !shell.trace) return noTrace(shell);
  if (view.asks && !holds(shell, view.asks)) return el("div.empty", el("p", view.unheld));
  const task = !["trace", "nothing"].includes(view.needs) && view.needs;
  if (!task || shell.about.models.some((model) => model.task === task)) return null;
  const words = view.without ?? `No model for this is here: ${view.title} needs one that can “${task}”.`;
  const file = shell.source.holds && "A single file runs no model. Those that ship are shown by: regard view.";
  return el("div.empty", el("p", file || words));
}

const LISTED = 4; // traces that are offered instead

function noTrace(shell) {
  const { model, sentence } = shell.state.get();
  const id = shell.traceId();
  const what = model && sentence ? `${model} reading “${sentence}”` : "a trace";
  const words =
    id != null && !shell.listed(id)
      ? [
          `This link is to ${what}, which is not here: it was made on another computer, or before the server was restarted.`,
          model ? `To see it, install the model ${model} where this server runs.` : "",
        ]
      : ["There is nothing to look at yet. A trace is what a model attended to while it read or wrote a text."];
  const python = "In Python: with regard.watch(model) as seen: model(…), then seen.show() or seen.save(folder).";
  const others = shell.about.traces.slice(0, LISTED);
  return el(
    "div.empty",
    ...words.filter(Boolean).map((text) => el("p", text)),
    ...others.map(({ id, title }) => el("p", el("button", { onclick: () => shell.pick(id) }, title))),
    shell.sentence.possible
      ? el("button.primary", { onclick: () => shell.sentence.focus() }, "Type a sentence")
      : el("p", python),
  );
}

/** Whether the source can answer this part of the call that is looked at; all but a file can answer everything. */
function holds({ source, trace, state }, part) {
  const path = callPath(trace, callOf(trace, state.get()));
  return source.holds?.(`${path}/${part}`) ?? true;
}

/** For tests and benchmarks: `regard.drawn()` is what the view drew, as numbers. */
function testHooks(shell) {
  return {
    state: shell.state,
    source: shell.source,
    views: views.map((view) => view.name),
    drawn: () => shell.view?.drawn?.() ?? null,
    picture: async () => svgOf(await shell.view?.picture?.()),
    figure: () => shell.theme.onWhite(async () => svgOf(await figureOf(shell))),
    link: () => linkOf(shell),
    table: () => shell.view?.table?.(),
  };
}

// The shell: tabs, the trace that is looked at, its proof, and one view at a time. What a view is: types/viewer.d.ts (View).
import { el } from "../draw/dom.js";
import { makePalette } from "../draw/palette.js";
import { views } from "../views/index.js";
import { showBar, showTheme } from "./bar.js";
import { copyLink, exportView } from "./figure_export.js";
import { makeKeyboard } from "./keyboard.js";
import { readLinkedText } from "./linked_text.js";
import { makeAnnouncer } from "./live_region.js";
import { missingView } from "./missing_view.js";
import { makeNotice } from "./notice.js";
import { pageLayout } from "./page_layout.js";
import { pageShortcuts } from "./page_shortcuts.js";
import { readDialog } from "./read_dialog.js";
import { runStatus } from "./run_status.js";
import { sentenceForm } from "./sentence_form.js";
import { watchServer } from "./server_watch.js";
import { testHooks } from "./test_hooks.js";
import { makeTheme } from "./theme.js";
import { firstUse, makeTour } from "./tour.js";
import { ofTrace, wordToPin } from "./trace_state.js";
import { makeState } from "./url_state.js";
import { viewContext } from "./view_context.js";
import { makeViewMotion } from "./view_motion.js";

/** Draw the viewer into `root`; returns a function that ends it. `page`: the address and all keys are ours. */
export async function start(root, source, { page = false } = {}) {
  root.classList.add("regard");
  const shell = new Shell(root, source, page);
  window.regard = testHooks(shell);
  await shell.begin();
  return () => shell.close();
}

class Shell {
  /** @type {About} */
  about;
  /** @type {Trace | null} */
  trace;
  /** @type {MountedView | null} */
  view;
  /** @type {ReturnType<typeof readDialog>} */
  reading;
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
    this.comeIn = makeViewMotion(this.parts.stage);
    this.announce = makeAnnouncer(root);
    this.notice = makeNotice(root, this.announce);
    this.keyboard = makeKeyboard(page ? document : root, root);
    this.keyboard.add("Everywhere", pageShortcuts(this));
    this.tour = makeTour({
      root,
      state: this.state,
      shows: (name) => !missingView(this, /** @type {View} */ (viewOf(name))),
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
    this.reading = readDialog(this.root, this.source, this.about, (id) => this.added(id));
    this.sentence = sentenceForm(this.source, this.about, {
      made: (id) => this.added(id),
      more: (model, text) => this.reading.open(model, text),
      fail: (error) => this.fail(error),
      waiting: this.runs,
    });
    this.parts.bar.before(this.sentence);
    this.listTraces();
    if (this.page && !this.source.holds) this.server = this.watch();
    if (await readLinkedText(this)) return;
    if (!viewOf(this.state.get().view)) {
      this.trace = await this.load(this.traceId(), this.state.get().entry ?? 0).catch(() => null); // mount() says why
      this.state.set({ view: this.first, ...this.about.opening }); // which may name another view
    } else this.mounting = this.mount();
    await this.mounting;
    if (this.welcome) this.tour.offer(this.sentence);
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
    if (this.reading.possible) options.push(el("option", { value: "+" }, "Another text …"));
    this.parts.picker.replaceChildren(...options);
    this.parts.picker.value = this.traceId() ?? "";
  }

  traceId() {
    return this.state.get().trace ?? this.about.traces[0]?.id ?? null;
  }

  pick(id) {
    if (id === "+") {
      this.parts.picker.value = this.traceId() ?? "";
      this.reading.open();
    } else this.state.set(ofTrace(id));
  }

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
      if (this.view.keys) this.forgetKeys = this.keyboard.add(known.title, this.view.keys);
    }
    this.comeIn();
    this.announce(`${known.title}: ${known.hint}`);
  }

  /** One at a time is kept: the tokens of long texts are large. */
  async load(id, entry) {
    if (id == null) return null;
    const key = `${id}/${entry}`;
    if (this.loaded?.key !== key) {
      const path = `/api/traces/${encodeURIComponent(id)}`;
      const first = await this.source.get(path);
      this.loaded = { key, trace: entry > 0 && entry < first.batch ? await this.source.get(path, { entry }) : first };
    }
    return this.loaded.trace;
  }

  listed(id) {
    return this.about.traces.some((trace) => trace.id === id);
  }

  get level() {
    return this.state.get().level ?? "token";
  }

  fail(error) {
    if (error.name === "AbortError") return;
    const close = el(
      "button.quiet",
      { type: "button", "aria-label": "Close this message", onclick: () => (this.parts.alert.hidden = true) },
      "×",
    );
    this.parts.alert.replaceChildren(el("span", {}, error.message), close);
    this.parts.alert.hidden = false;
  }

  // What can be done

  /** Everything larger, for the back of a lecture hall; again, as before. */
  present() {
    this.root.classList.toggle("large");
    this.view?.update(this.state.get());
  }

  export(kind, asShown = false) {
    return exportView(this, kind, asShown);
  }

  copyLink(withToken = false) {
    return copyLink(this, withToken);
  }

  close() {
    this.server?.close();
    this.runs.close();
    this.notice.close();
    this.generation += 1;
    this.view?.destroy();
    this.stop();
    this.state.close();
    this.theme.close();
    this.keyboard.close();
    this.announce.close();
    this.source.close?.();
    this.root.replaceChildren();
  }
}

function viewOf(name) {
  return views.find((view) => view.name === name);
}

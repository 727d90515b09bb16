// One layer of the Heads view: its weights, and the picture of lines between two columns of tokens.
//
// What all layers that are shown share, such as the tokens, the pins and what is hidden, is the view's.
import { layerTitle } from "../../data/calls.js";
import { Links } from "../../data/links.js";
import { Rows } from "../../data/weight_rows.js";
import { fit, inks } from "../../draw/canvas.js";
import { el } from "../../draw/dom.js";
import { scrollingCanvas } from "../../draw/scrolling_canvas.js";
import { unique } from "./heads_pins.js";
import { drawLines, drawTokens, linksFrom, linksTo, PAD, rowHeight, visible } from "./link_lines.js";

const NARROW = 520; // pixels: a phone

export class LayerPanel {
  /** @type {Call} */
  call;
  /** @type {Rows} */
  rows;
  /** @type {Links | null} */
  links;
  /** The heads that are on. @type {number[]} */
  active;
  /** What was drawn last. @type {ReturnType<LayerPanel["shown"]> | null} */
  last = null;

  /** `view` is the Heads view; `scrolled(panel)` and `painted()` are called after either. */
  constructor(view, scrolled, painted) {
    this.view = view;
    this.context = view.context;
    this.trace = view.trace;
    this.painted = painted;
    this.scroll = scrollingCanvas({
      label: "Tokens and the links between them: arrow keys choose a token, Enter keeps it",
      layers: 2,
      draw: () => this.draw(),
      scrolled: () => scrolled(this),
    });
    this.lines = this.scroll.canvases[0];
    this.over = this.scroll.canvases[1];
    this.box = this.scroll.box;
    this.pane = this.scroll.pane;
    this.paint = this.scroll.paint;
    this.title = el("p.panel-title", { hidden: true });
    this.root = el("div.panel-column.layer-column", {}, this.title, this.box);
  }

  /** Show a layer. `named`: there is another one beside it. @param {Call} call */
  show(call, named) {
    const { answerChoice, querySide, keySide, state } = this.view;
    const key = answerChoice.ofCall(call) ? answerChoice.key : "";
    if (call !== this.call || key !== this.rowsKey) {
      this.rows?.close();
      this.call = call;
      this.rowsKey = key;
      const target = key ? answerChoice.target : null;
      this.rows = new Rows(this.context, call, state.entry ?? 0, () => this.paint(), target);
      this.links = null;
      this.last = null;
    }
    if (this.links?.querySide !== querySide || this.links?.keySide !== keySide)
      this.links = new Links(this.rows, querySide, keySide);
    const all = Array.from({ length: call.heads }, (_, head) => head);
    this.active = Array.isArray(state.heads) ? all.filter((head) => state.heads.includes(head)) : all;
    this.colors = all.map((head) => this.context.palette.head(head));
    this.title.hidden = !named;
    this.title.textContent = layerTitle(this.trace, call);
    this.stretch();
    this.paint();
  }

  // What the words beside the picture and exports read, of this layer

  get querySide() {
    return this.view.querySide;
  }

  get keySide() {
    return this.view.keySide;
  }

  get muted() {
    return this.view.muted;
  }

  get mutedQueries() {
    return this.view.mutedQueries;
  }

  get pins() {
    return this.view.pins;
  }

  get patterns() {
    return this.view.patterns;
  }

  get answerChoice() {
    return this.view.answerChoice;
  }

  unpin() {
    this.view.unpin();
  }

  // Drawing

  /** Pixels of a token. */
  get row() {
    return rowHeight(this.box.clientHeight, Math.max(this.querySide.labels.length, this.keySide.labels.length));
  }

  /** What is scrolled is as high as the longer column. */
  stretch() {
    const most = Math.max(this.querySide.labels.length, this.keySide.labels.length - this.view.shift);
    const height = `${most * this.row + 2 * PAD}px`;
    if (this.scroll.spacer.style.height !== height) this.scroll.spacer.style.height = height;
  }

  columns(width = this.box.clientWidth) {
    if (width < NARROW) return { left: width * 0.24, right: width * 0.62, width }; // room for the weights of each head
    const column = Math.max(90, Math.min(280, width * 0.28));
    return { left: column, right: width - column, width };
  }

  /** Everything that link_lines.js needs to know of the moment. */
  scene(width = this.box.clientWidth, height = this.box.clientHeight) {
    const { view } = this;
    const { palette } = this.context;
    return {
      ...this.columns(width),
      height,
      top: this.box.scrollTop - PAD,
      row: this.row,
      shift: view.shift,
      active: this.active,
      colors: this.colors,
      querySide: this.querySide,
      keySide: this.keySide,
      links: this.links,
      muted: view.muted,
      mutedQueries: view.mutedQueries,
      mass: view.share,
      part: view.pairs.includes(view.state.part) ? view.state.part : null,
      peak: this.rows.signed ? view.answerChoice.ofCall(this.call)?.peak || 1 : 0,
      opacities: Array.from({ length: this.call.heads }, (_, head) => palette.headOpacity(head)),
      ramp: palette.ramp,
      waiting: false, // whether weights are on their way; set while links are looked up
      signs: [palette.signed(-0.7), palette.signed(0.7)],
      theme: this.context.theme,
      chosen: view.focus().length > 0,
    };
  }

  shown(scene) {
    const focus = unique(this.view.focus());
    const queries = visible(scene).filter((query) => !scene.mutedQueries.has(query));
    const links = focus.length
      ? focus.flatMap(({ side, at }) => (side === "query" ? linksFrom(scene, at) : linksTo(scene, at)))
      : queries.flatMap((query) => linksFrom(scene, query, false));
    return { focus, links, rows: visible(scene), waiting: scene.waiting };
  }

  draw() {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (!width || !height) return;
    this.stretch();
    const scene = this.scene(width, height);
    const shown = this.shown(scene);
    const base = !shown.focus.length;
    this.lines.hidden = !base;
    const ctx = fit(this.over, width, height);
    ctx.clearRect(0, 0, width, height);
    if (base) {
      const under = fit(this.lines, width, height);
      under.clearRect(0, 0, width, height);
      drawLines(under, scene, shown.links);
    } else drawLines(ctx, scene, shown.links);
    this.drawTokens(ctx, scene, shown);
    this.last = shown;
    this.painted();
  }

  drawTokens(ctx, scene, { focus, links }) {
    drawTokens(ctx, scene, focus, links, this.pins, this.view.pointer.hover, inks(this.box));
  }

  close() {
    this.scroll.close();
    this.rows.close();
    this.root.remove();
  }
}

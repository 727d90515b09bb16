// Neuron: how one weight comes about. Of one query: q, each key k, their product number by number, its sum (the energy),
// and the weight the normalizer makes of it. For additive energies the product is w ⊙ tanh(q + k).
import { Pieces } from "../data/sources.js";
import { callOf, callPath, chosenQuery, fileParts, sideOf } from "../data/tokens.js";
import { fit, inks, onPaper, place, scrollingCanvas, shortened, write } from "../draw/canvas.js";
import { bounded, callChoice, el, headChoice, number } from "../draw/elements.js";

const BLOCK = 64; // keys in one answer

const FORMULAS = {
  dot: ({ scale, q }) => `energy = ${number(scale)} · Σ qᵢ kⱼ over ${q.length} numbers`,
  tanh: ({ q }) => `energy = Σ w · tanh(qᵢ + kⱼ) over ${q.length} numbers`,
  distance: ({ q }) => `energy = −½ · Σ (qᵢ − kⱼ)² over ${q.length} numbers`,
  function: () => "the energy is a function of (q, k) that is no sum of terms",
};

const UNKEPT = "the energies of this layer were kept, not the queries and keys they come from";

/** @type {View} */
export const neuron = {
  name: "neuron",
  title: "Neuron",
  hint: "How a weight comes about: click a token on the left to choose the query",
  needs: "trace",
  asks: "neuron",
  unheld:
    "A single file holds weights, not the queries and keys they come from. To see those number by number, keep what was " +
    "watched with seen.save(folder) and run: regard view folder.",
  tokensOnly: true,
  showsHead: true,
  mount: (root, context) => new Neuron(root, context),
};

class Neuron {
  /** @type {Call} */
  call;
  /** @type {ReturnType<typeof sideOf>} */
  querySide;
  /** @type {ReturnType<typeof sideOf>} */
  keySide;
  /** @type {Record<string, number>} */
  peaks;
  /** @type {number} */
  query;
  /** @type {number} */
  head;
  /** @type {{ key: number, energy: number | null, weight: number, block: any, at: number }[]} */
  rows;
  /** @type {State} */
  state;
  /** @type {string} */
  asked;

  constructor(root, context) {
    this.context = context;
    this.trace = context.trace;
    this.hover = null;
    this.aloud = false; // the next reading is announced: the keyboard asked for it
    const told = { arrived: () => this.paint(), failed: context.fail };
    this.blocks = new Pieces((number, signal) => this.load(number, signal), told);
    this.callBox = el("span");
    this.headBox = el("span");
    this.formula = el("p.hint.note");
    this.scroll = scrollingCanvas({
      label: "Query, keys, products and weights",
      draw: () => this.draw(),
      scrolled: () => this.scrolled(),
    });
    this.canvas = this.scroll.canvas;
    this.box = this.scroll.box;
    this.pane = this.scroll.pane;
    this.paint = this.scroll.paint;
    this.line = el("p.footer");
    root.append(el("div.controls.folds", this.callBox, this.headBox, this.formula), this.box, this.line);
    this.pane.addEventListener("pointermove", (event) => this.point(this.under(event)));
    this.pane.addEventListener("pointerleave", () => this.point(null));
    this.pane.addEventListener("click", (event) => {
      const found = this.under(event);
      if (found?.part === "query") this.context.state.set({ query: found.row });
    });
    this.update(context.state.get());
    this.draw(); // what is scrolled must have its height
    this.box.scrollTop = bounded(this.state.at, 0, Math.max(this.call.queries, this.call.keys)) * this.row;
  }

  /** Pixels of a row. */
  get row() {
    return rowHeight(this.box.clientHeight, Math.max(this.call.queries, this.call.keys));
  }

  update(state) {
    this.state = state;
    const call = callOf(this.trace, state);
    const [head, entry] = [Math.min(state.head ?? 0, call.heads - 1), state.entry ?? 0];
    const query = Math.min(state.query ?? chosenQuery(state) ?? 1, call.queries - 1);
    if (call !== this.call) {
      this.call = call;
      this.querySide = sideOf(this.trace, call, "query", "token");
      this.keySide = sideOf(this.trace, call, "key", "token");
      this.callBox.replaceChildren(callChoice(this.trace, call, (id) => this.context.state.set({ call: id })));
    }
    this.headBox.replaceChildren(headChoice(call.heads, head, (value) => this.context.state.set({ head: value })));
    const asked = [call.id, head, entry, query].join();
    if (asked !== this.asked) {
      this.blocks.close();
      this.asked = asked;
      this.head = head;
      this.entry = entry;
      this.query = query;
      this.rows = [];
      this.peaks = { q: 0, k: 0, product: 0, modified: 0, weight: 0 };
    }
    this.paint();
  }

  /** What is known of one key: {at, block}, or null while it is fetched. */
  key(j) {
    const number = Math.floor(j / BLOCK);
    const block = this.blocks.get(number);
    return block && { block, at: j - number * BLOCK };
  }

  async load(number, signal) {
    const first = number * BLOCK;
    const cols = `${first}:${Math.min(first + BLOCK, this.call.keys)}`;
    const params = { head: this.head, entry: this.entry, query: this.query, cols };
    const found = await this.context.source.get(`${callPath(this.trace, this.call)}/neuron`, params, signal);
    if (!signal.aborted) this.widen(found);
    return found;
  }

  /** Colours and bars are on the scale of the largest number met so far, which the titles name. */
  widen(found) {
    const most = (rows) => (rows ?? []).flat().reduce((a, b) => Math.max(a, Math.abs(b ?? 0)), 0);
    for (const name of Object.keys(this.peaks)) this.peaks[name] = Math.max(this.peaks[name], most(found[name]));
    this.normalizer = found.normalizer;
    const kept = this.peaks.q > 0 || this.peaks.k > 0; // of some decoders energies are watched, and nothing else
    this.formula.textContent = kept ? FORMULAS[found.kind](found) : UNKEPT;
  }

  // Pointing

  under(event) {
    const { x, y } = place(event, this.pane);
    const row = Math.floor((y - TOP + this.box.scrollTop) / this.row);
    const at = columns(this.box.clientWidth);
    if (y < TOP || row < 0) return null;
    if (x < at.label) return row < this.call.queries ? { part: "query", row } : null;
    if (row >= this.call.keys) return null;
    const wide = this.blocks.get(0)?.q?.length ?? 0;
    for (const part of ["k", "product"])
      if (x >= at[part] && x < at[part] + at.strip && wide)
        return { part, row, d: Math.floor(((x - at[part]) / at.strip) * wide) };
    return { part: "key", row };
  }

  point(found) {
    if (JSON.stringify(found) === JSON.stringify(this.hover)) return;
    this.hover = found;
    this.paint();
  }

  scrolled() {
    const at = Math.round(this.box.scrollTop / this.row);
    if (at !== (this.state.at ?? 0)) this.context.state.set({ at: at || null });
    this.paint();
  }

  /** @returns {KeyBinding[]} */
  get keys() {
    const set = (patch) => this.context.state.set(patch);
    const move = (by) => {
      const query = Math.min(this.call.queries - 1, Math.max(0, this.query + by));
      set({ query });
      this.reveal(query);
      this.context.announce(`query ${this.querySide.labels[query]}`);
    };
    const turn = (by) => set({ head: (this.head + by + this.call.heads) % this.call.heads });
    const layer = (by) => {
      const call = this.trace.calls[this.trace.calls.indexOf(this.call) + by];
      if (call) set({ call: call.id });
    };
    return [
      { key: "ArrowDown", text: "next query", run: () => move(1) },
      { key: "ArrowUp", text: "previous query", run: () => move(-1) },
      { key: "ArrowRight", text: "read the next key", run: () => this.step(1) },
      { key: "ArrowLeft", text: "read the previous key", run: () => this.step(-1) },
      { key: "ArrowRight", shift: true, text: "its next number", run: () => this.stepNumber(1) },
      { key: "ArrowLeft", shift: true, text: "its previous number", run: () => this.stepNumber(-1) },
      { key: ".", text: "next head", run: () => turn(1) },
      { key: ",", text: "previous head", run: () => turn(-1) },
      { key: "]", text: "next layer", run: () => layer(1) },
      { key: "[", text: "previous layer", run: () => layer(-1) },
    ];
  }

  /** The key that is read is the one after, or before, that which was; the first, where none was. */
  step(by) {
    const before = this.hover && this.hover.part !== "query" ? this.hover.row : -1;
    const row = Math.min(this.call.keys - 1, Math.max(0, before + by));
    this.read({ ...this.hover, part: this.hover?.d == null ? "key" : "product", row });
  }

  /** One number of the key that is read: its q, k and product. */
  stepNumber(by) {
    const wide = this.key(0)?.block.q.length ?? 0;
    const row = this.hover && this.hover.part !== "query" ? this.hover.row : 0;
    if (wide) this.read({ part: "product", row, d: Math.min(wide - 1, Math.max(0, (this.hover?.d ?? -1) + by)) });
  }

  read(place) {
    this.aloud = true;
    this.hover = place;
    this.reveal(place.row);
    this.paint();
  }

  reveal(row) {
    const y = row * this.row;
    const room = this.box.clientHeight - TOP - this.row;
    if (y < this.box.scrollTop) this.box.scrollTop = y;
    else if (y > this.box.scrollTop + room) this.box.scrollTop = y - room;
  }

  // Drawing

  draw(pen = /** @type {Pen | null} */ (null), colors = inks(this.box)) {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (!width || !height) return;
    const ctx = pen ?? fit(this.canvas, width, height);
    ctx.clearRect(0, 0, width, height);
    const all = Math.max(this.call.queries, this.call.keys);
    this.scroll.spacer.style.height = `${all * this.row + TOP + BELOW}px`;
    const at = columns(width);
    const top = this.box.scrollTop;
    const first = Math.max(0, Math.floor(top / this.row));
    const last = Math.min(all, Math.ceil((top + height - TOP) / this.row));
    this.rows = [];
    for (let row = first; row < last; row++) drawRow(ctx, this, at, row, TOP + row * this.row - top, colors);
    ctx.fillStyle = colors.paper;
    ctx.fillRect(0, 0, width, TOP);
    drawTop(ctx, this, at, colors);
    if (!pen) this.say();
  }

  say() {
    const reading = keyReading(this);
    this.line.textContent = reading ?? "Point at a number to read it, or tap it; → and Shift → go to the next.";
    if (reading === null) return;
    if (this.aloud) this.context.announce(reading);
    this.aloud = false;
  }

  // Export and tests

  picture() {
    const { clientWidth, clientHeight } = this.box;
    const colors = inks(this.box);
    return onPaper(clientWidth, clientHeight, colors.paper, (ctx) => this.draw(ctx, colors));
  }

  legend() {
    return { signed: true, from: "−", to: "+", words: "numbers of q, k and their products" };
  }

  subject() {
    return fileParts(this.trace, this.call, [this.head]);
  }

  table() {
    const wide = this.key(0)?.block.q.length ?? 0;
    const dimensions = Array.from({ length: wide }, (_, d) => d);
    const parts = ["k", "product"].flatMap((part) => dimensions.map((d) => part + d));
    const rows = this.rows.map(({ key, energy, weight, block, at }) => {
      return [key, this.keySide.labels[key], energy, weight, ...block.k[at], ...(block.product?.[at] ?? [])];
    });
    return [["key", "token", "energy", "weight", ...parts], ...rows];
  }

  drawn() {
    const q = this.key(0)?.block.q ?? null;
    const rows = this.rows.map(({ key, energy, weight, block, at }) => {
      return { key, energy, weight, k: block.k[at], product: block.product?.[at] ?? null };
    });
    return { call: this.call.id, head: this.head, query: this.query, q, rows };
  }

  destroy() {
    this.scroll.close();
    this.blocks.close();
  }
}

// The drawing of the Neuron view: the query on top, then a row for each key.
//
// `view` has row, the pixels of a row, and call, query, peaks, normalizer, hover, rows, key(j), querySide, keySide and context, as the view has them.

const [LEAST, MOST] = [24, 36]; // pixels of a row
const TOP = 78; // the query and the titles stay above the rows
export const BELOW = 12; // pixels that stay free after the last row

/** Pixels of a row: as many as let these rows fill the height. */
function rowHeight(height, rows) {
  return Math.min(MOST, Math.max(LEAST, Math.floor((height - TOP - BELOW) / Math.max(1, rows))));
}

/** Where each column begins, and how wide they are. */
export function columns(width) {
  const narrow = width < 640;
  const gap = narrow ? 6 : 16;
  const label = narrow ? width * 0.16 : Math.max(80, Math.min(150, width * 0.12));
  const bar = narrow ? width * 0.2 : Math.max(86, Math.min(150, width * 0.12));
  const strip = (width - 2 * label - 2 * bar - 6 * gap) / 2;
  const key = label + gap;
  const k = key + label + gap;
  const product = k + strip + gap;
  const energy = product + strip + gap;
  return {
    width,
    narrow,
    label,
    bar,
    strip,
    key,
    k,
    product,
    energy,
    weight: energy + bar + gap,
    room: bar - (narrow ? 42 : 58),
  };
}

function drawTop(ctx, view, at, { ink, soft, line, font }) {
  const { peaks } = view;
  const titles = at.narrow
    ? { k: "kⱼ", product: "q · k", energy: "energy", weight: "weight" }
    : {
        k: `key kⱼ (±${number(peaks.k)})`,
        product: `product (±${number(peaks.product)})`,
        energy: "energy",
        weight: `weight${view.normalizer ? ` (${view.normalizer})` : ""}`,
      };
  const own = at.narrow ? "← query qᵢ" : `← its query qᵢ (±${number(peaks.q)})`;
  const left = { textAlign: "left", textBaseline: "middle", font: `12px ${font}`, fillStyle: soft };
  for (const [part, text] of Object.entries(titles)) write(ctx, text, at[part], TOP - 14, left);
  write(ctx, own, at.product, 24);
  write(ctx, "query i", at.label - 8, TOP - 14, { textAlign: "right" });
  write(ctx, "key j", at.key + at.label - 8, TOP - 14);
  const label = view.querySide.labels[view.query];
  write(ctx, label, at.key + at.label - 8, 24, { fillStyle: ink, font: `600 13px ${font}` });
  const found = view.key(0);
  if (found) strip(ctx, view, found.block.q, at.k, 12, at.strip, LEAST, peaks.q);
  ctx.fillStyle = line;
  ctx.fillRect(0, TOP - 2, at.width, 1);
}

function drawRow(ctx, view, at, row, y, colors) {
  const { row: high, hover, querySide, keySide, peaks } = view;
  const { palette } = view.context;
  const middle = y + high / 2;
  Object.assign(ctx, { textBaseline: "middle", textAlign: "right" });
  /** A token of either side: `lit` is heavier. */
  const token = (side, x, lit, fillStyle) =>
    write(ctx, shortened(ctx, side.labels[row], at.label - 16), x + at.label - 8, middle, {
      font: `${lit ? "600 " : ""}13px ${colors.font}`,
      fillStyle,
    });
  const plain = (side) => (side.special[row] ? colors.soft : colors.ink);
  if (row < view.call.queries) {
    const chosen = row === view.query;
    if (chosen || (hover?.part === "query" && hover.row === row)) {
      ctx.fillStyle = chosen ? colors.accent : colors.faint;
      ctx.fillRect(0, y + 1, at.label, high - 2);
    }
    token(querySide, 0, chosen, chosen ? colors.onAccent : plain(querySide));
  }
  if (row >= view.call.keys) return;
  const hovered = hover && hover.part !== "query" && hover.row === row;
  if (hovered) {
    ctx.fillStyle = colors.faint;
    ctx.fillRect(at.key, y, at.width - at.key, high);
  }
  token(keySide, at.key, hovered, plain(keySide));
  const found = view.key(row);
  if (!found) return;
  const { block, at: n } = found;
  const [energy, weight] = [block.modified[n], block.weight[n]]; // null where the mask closes it
  view.rows.push({ key: row, energy, weight, block, at: n });
  strip(ctx, view, block.k[n], at.k, y + 3, at.strip, high - 6, peaks.k);
  if (block.product) strip(ctx, view, block.product[n], at.product, y + 3, at.strip, high - 6, peaks.product);
  if (energy != null) {
    const length = (at.room * energy) / 2 / (peaks.modified || 1);
    ctx.fillStyle = palette.signed(Math.sign(energy) * 0.62);
    ctx.fillRect(at.energy + at.room / 2 + Math.min(0, length), y + 6, Math.abs(length), high - 12);
  }
  ctx.fillStyle = palette.ramp(0.6);
  ctx.fillRect(at.weight, y + 6, (at.room * weight) / (peaks.weight || 1), high - 12);
  const figure = { fillStyle: colors.ink, font: `12.5px ${colors.font}` };
  write(ctx, energy == null ? "masked" : energy.toFixed(2), at.energy + at.bar - 4, middle, figure);
  write(ctx, number(weight), at.weight + at.bar - 4, middle);
}

function strip(ctx, view, values, x, y, width, height, peak) {
  const w = width / values.length;
  values.forEach((value, d) => {
    ctx.fillStyle = view.context.palette.signed(value / (peak || 1));
    ctx.fillRect(x + d * w, y, w > 4 ? w - 1 : w, height);
  });
  if (view.hover?.d != null) {
    ctx.strokeStyle = view.context.palette.theme === "dark" ? "#ffffff" : "#000000";
    ctx.lineWidth = 1;
    ctx.strokeRect(x + view.hover.d * w, y - 1, Math.max(w - 1, 1), height + 2);
  }
}

/** The key or the number that is pointed at, in words; null where none is, or it is on its way. */
function keyReading(view) {
  const { hover } = view;
  const found = hover && hover.part !== "query" ? view.key(hover.row) : null;
  if (!found) return null;
  const { block, at } = found;
  const names = `${view.querySide.labels[view.query]} → ${view.keySide.labels[hover.row]}`;
  const [sum, energy] = [block.energy[at], block.modified[at]];
  const after =
    energy == null ? ", masked" : Math.abs(energy - sum) > 1e-4 ? `, ${number(energy)} after biases and caps` : "";
  const product = block.product ? `, product ${number(block.product[at][hover.d])}` : "";
  const of =
    hover.d == null
      ? ""
      : `number ${hover.d}: q ${number(block.q[hover.d])}, k ${number(block.k[at][hover.d])}${product}; `;
  return `${names}: ${of}energy ${number(sum)}${after}; weight ${number(block.weight[at])}`;
}

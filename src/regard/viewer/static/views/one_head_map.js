// One head as a map: tiles under a camera, tokens on the axes, a cross where one looks.
import { TILE_SIDE } from "../data/constants.js";
import { levelAt } from "../data/tiles.js";
import { clipped, inks, makeBoard, place, polyline, rotatedText, roundStep, sheet } from "../draw/canvas.js";
import { colored, shader, signedShader } from "../draw/colors.js";

const GUTTER = { left: 118, top: 92, right: 14, bottom: 12 };
const NARROW = { left: 74, top: 66, right: 8, bottom: 8 }; // on a phone
const WORD = 13; // pixels a row needs to have its token written beside it
const APART = 52; // pixels between the marks of an axis where not every row has one
const LONGEST = 14; // letters of a token that are written

/** `look()` is {camera: {x, y, scale, stretch}, cross: {row, column} | null, shade, palette, peak}, asked for at every drawing. `peak`
 * is the largest contribution where contributions are drawn, else 0.
 */
export class MapPanel {
  /** @type {{query: string[], key: string[]}} */
  sides;

  constructor(host, look) {
    this.host = host;
    this.look = look;
    this.tiles = null;
    this.board = makeBoard(host, { tabindex: "0", role: "application" }, (pen) => this.draw(pen));
  }

  /** Another head, pooling or level. `sides` are those of rows and columns; `tiles` answers for them. */
  show(tiles, sides) {
    this.tiles?.close();
    this.tiles = tiles;
    this.call = tiles.call;
    this.sides = { query: sides.query.labels, key: sides.key.labels };
  }

  /** Where the matrix is drawn. */
  get area() {
    const { width, height } = this.board.size;
    const gutter = width < 480 ? NARROW : GUTTER;
    const [wide, high] = [width - gutter.left - gutter.right, height - gutter.top - gutter.bottom];
    return { x: gutter.left, y: gutter.top, width: Math.max(1, wide), height: Math.max(1, high) };
  }

  /** Pixels of a row and column, and back. */
  at(column, row) {
    const { x, y, scale, stretch } = this.look().camera;
    const area = this.area;
    return [area.x + area.width / 2 + (column - x) * scale * stretch, area.y + area.height / 2 + (row - y) * scale];
  }

  under(px, py) {
    const { x, y, scale, stretch } = this.look().camera;
    const area = this.area;
    const [across, down] = [px - area.x - area.width / 2, py - area.y - area.height / 2];
    return { column: x + across / (scale * stretch), row: y + down / scale };
  }

  /** The places in the corners of the window. */
  get sight() {
    const { x, y, width, height } = this.area;
    return [this.under(x, y), this.under(x + width, y + height)];
  }

  /** What is drawn at a place: {row, column, value, cell: [rows, columns]} of the cell there, or null. */
  read(place) {
    const [row, column] = [Math.floor(place.row), Math.floor(place.column)];
    if (row < 0 || column < 0 || row >= this.call.queries || column >= this.call.keys) return null;
    for (let level = levelAt(this.look().camera.scale); level <= this.tiles.top; level++) {
      const tile = this.tiles.find(level, ...[row, column].map((x) => Math.floor(x / (TILE_SIDE * 2 ** level))));
      if (!tile?.data) continue;
      const cell = 2 ** level;
      const [r, c] = [
        Math.floor(row / cell) - tile.row * TILE_SIDE,
        Math.floor(column / cell) - tile.column * TILE_SIDE,
      ];
      const from = { row: Math.floor(row / cell) * cell, column: Math.floor(column / cell) * cell };
      const rows = Math.min(cell, this.call.queries - from.row);
      const columns = Math.min(cell, this.call.keys - from.column);
      return { ...from, value: tile.data[r * tile.width + c], cell: [rows, columns], level };
    }
    return null;
  }

  draw(pen) {
    if (!this.tiles) return;
    const colors = inks(this.host);
    this.raster(pen, 0, 0);
    this.axes(pen, colors);
    this.drawChosen(pen, colors);
    this.drawCross(pen, colors);
  }

  /** The row of the word that was chosen in Heads: a frame around it, and a mark beside its name. */
  drawChosen(pen, { accent }) {
    const { chosen } = this.look();
    if (chosen == null || chosen >= this.call.queries) return;
    const area = this.area;
    const [left, top] = this.at(0, chosen);
    const [right, bottom] = this.at(this.call.keys, chosen + 1);
    clipped(pen, { ...area, x: area.x - 6, width: area.width + 6 }, () => {
      Object.assign(pen, { strokeStyle: accent, fillStyle: accent, lineWidth: 1.5 });
      pen.strokeRect(left - 1, top - 0.5, right - left + 2, Math.max(2, bottom - top));
      pen.fillRect(area.x - 6, top, 3, Math.max(2, bottom - top));
    });
  }

  /** The tiles, clipped to where the matrix is; `x`, `y` is the corner of the page on `pen`. */
  raster(pen, x, y) {
    const area = this.area;
    const { camera } = this.look();
    const level = Math.min(levelAt(camera.scale), this.tiles.top);
    const reach = TILE_SIDE * 2 ** level;
    const [first, last] = this.sight;
    const rows = span(first.row, last.row, this.call.queries, reach);
    const columns = span(first.column, last.column, this.call.keys, reach);
    const middle = [camera.y / reach - 0.5, camera.x / reach - 0.5];
    const list = rows.flatMap((row) => columns.map((column) => [level, row, column]));
    list.sort(
      (a, b) => Math.hypot(a[1] - middle[0], a[2] - middle[1]) - Math.hypot(b[1] - middle[0], b[2] - middle[1]),
    );
    this.tiles.want([[this.tiles.top, 0, 0], ...list.filter((at) => at[0] !== this.tiles.top)]);
    const [left, top] = this.at(0, 0);
    const [right, bottom] = this.at(this.call.keys, this.call.queries);
    pen.translate(-x, -y);
    clipped(pen, area, () =>
      clipped(pen, { x: left, y: top, width: right - left, height: bottom - top }, () => {
        pen.imageSmoothingEnabled = false;
        for (const at of list) this.paint(pen, ...at);
      }),
    );
    pen.translate(x, y);
  }

  /** One tile, or the part of a coarser one that stands in for it until it is here. */
  paint(pen, level, row, column) {
    const reach = TILE_SIDE * 2 ** level;
    for (let up = 0; level + up <= this.tiles.top; up++) {
      const tile = this.tiles.find(level + up, row >> up, column >> up);
      if (!tile?.data) continue;
      const image = this.image(tile);
      const part = TILE_SIDE / 2 ** up;
      const [sx, sy] = [(column % 2 ** up) * part, (row % 2 ** up) * part];
      const [wide, high] = [Math.min(part, tile.width - sx), Math.min(part, tile.height - sy)];
      const cell = 2 ** (level + up);
      // Whole pixels, or seams show between tiles.
      const [x0, y0] = this.at(column * reach, row * reach).map(Math.round);
      const [x1, y1] = this.at(column * reach + wide * cell, row * reach + high * cell).map(Math.round);
      if (wide > 0 && high > 0) pen.drawImage(image, sx, sy, wide, high, x0, y0, x1 - x0, y1 - y0);
      return;
    }
  }

  /** A tile's colours, made when it is first drawn in them. */
  image(tile) {
    const { shade, palette, peak } = this.look();
    const stamp = `${shade} ${palette.theme} ${peak}`;
    if (tile.stamp !== stamp) {
      const scale = shader(shade, this.call.keys);
      tile.image = peak
        ? colored(tile, signedShader(scale, peak), palette.signedBytes)
        : colored(tile, scale, palette.bytes);
      tile.stamp = stamp;
    }
    return tile.image;
  }

  axes(pen, { ink, soft, line, font }) {
    const area = this.area;
    const { camera, cross, chosen } = this.look();
    const ends = this.sight;
    Object.assign(pen, { strokeStyle: line, lineWidth: 1, textBaseline: "middle" });
    const [left, top] = this.at(0, 0);
    const [right, bottom] = this.at(this.call.keys, this.call.queries);
    const wider = { x: area.x - 1, y: area.y - 1, width: area.width + 2, height: area.height + 2 };
    clipped(pen, wider, () => pen.strokeRect(left - 0.5, top - 0.5, right - left + 1, bottom - top + 1));
    const stepAt = (scale) => (scale >= WORD ? 1 : roundStep(APART / scale));
    const step = { row: stepAt(camera.scale), column: stepAt(camera.scale * camera.stretch) };
    const write = (text, here, x, y, angle) => {
      Object.assign(pen, { fillStyle: here ? ink : soft, font: `${here ? "600 " : ""}12px ${font}` });
      rotatedText(pen, text, x, y, angle);
    };
    pen.textAlign = "right";
    for (const row of counted(ends[0].row, ends[1].row, this.call.queries, step.row)) {
      const y = this.at(0, row + 0.5)[1];
      if (y >= area.y && y <= area.y + area.height)
        write(this.name(this.sides.query, row, step.row), row === cross?.row || row === chosen, area.x - 8, y, 0);
    }
    pen.textAlign = "left";
    for (const column of counted(ends[0].column, ends[1].column, this.call.keys, step.column)) {
      const x = this.at(column + 0.5, 0)[0];
      if (x >= area.x && x <= area.x + area.width)
        write(this.name(this.sides.key, column, step.column), column === cross?.column, x, area.y - 8, -Math.PI / 3);
    }
    pen.textBaseline = "alphabetic";
  }

  name(tokens, i, step) {
    const token = (tokens[i] ?? "").slice(0, LONGEST);
    return step === 1 || token === String(i) ? token : `${i.toLocaleString("en")} ${token}`;
  }

  drawCross(pen, { ink, paper }) {
    const { cross: place, camera } = this.look();
    if (!place) return;
    const area = this.area;
    const cell = 2 ** levelAt(camera.scale);
    const [x, y] = this.at(place.column, place.row).map(Math.round);
    const high = Math.max(3, cell * camera.scale);
    const wide = Math.max(3, cell * camera.scale * camera.stretch);
    // A dark line beside a light one is seen on any colour.
    const cross = (strokeStyle, off) => {
      Object.assign(pen, { strokeStyle, lineWidth: 1, globalAlpha: 0.55 });
      pen.strokeRect(x - 0.5 - off, y - 0.5 - off, wide + 1 + 2 * off, high + 1 + 2 * off);
      polyline(pen, [area.x, y + high / 2 + off, x - 2, y + high / 2 + off]);
      polyline(pen, [x + wide / 2 + off, area.y, x + wide / 2 + off, y - 2]);
      pen.globalAlpha = 1;
    };
    clipped(pen, area, () => {
      cross(paper, 1);
      cross(ink, 0);
    });
  }

  /** For export: the tiles as one image, the axes as words. */
  picture(pen) {
    const area = this.area;
    const tiles = sheet(area.width, area.height);
    this.raster(tiles, area.x, area.y);
    pen.drawImage(tiles.canvas, area.x, area.y, area.width, area.height);
    this.axes(pen, inks(this.host));
    this.drawChosen(pen, inks(this.host));
  }

  close() {
    this.tiles?.close();
    this.board.close();
  }
}

/** Tile numbers from one place to another, of those there are. */
function span(from, to, count, reach) {
  const first = Math.max(0, Math.floor(from / reach));
  const last = Math.min(Math.ceil(count / reach) - 1, Math.floor(to / reach));
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i);
}

/** Every step-th number in sight. */
function counted(from, to, count, step) {
  const first = Math.max(0, Math.floor(from / step));
  const last = Math.min(Math.ceil(count / step) - 1, Math.floor(to / step));
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => (first + i) * step);
}

// The map's camera: which weight is in the middle, and how many pixels a weight is high and wide. Pointers and wheels move it.

export const LARGEST = 48; // pixels of a weight, from top to bottom, where zooming in ends
const WIDEST = 2; // times as wide as high that a weight may be, so that a head fills a window that is wider than it

/** `first()` is the panel whose window counts; `moved()` is called at every move, `rested(camera)` when they end. */
export class MapCamera {
  constructor({ first, moved, rested, pointed }) {
    this.first = first;
    this.moved = moved;
    this.rested = rested;
    this.pointed = pointed;
    /** @type {{x: number, y: number, scale: number} | null} */
    this.chosen = null; // null: the whole head, whatever the window's size
    this.pointers = new Map();
  }

  /** {x, y, scale, stretch}: the key and the query in the middle, the pixels of a weight from top to bottom, and how many
   * times as wide it is. */
  get now() {
    const { stretch } = this;
    if (this.chosen) return { ...this.chosen, stretch };
    const { area } = this.first();
    const scale = this.whole;
    // Its corner in the window's corner.
    return { x: area.width / (scale * stretch) / 2, y: area.height / scale / 2, scale, stretch };
  }

  /** How many times as wide as high a weight is: as the window is to the whole head, from 1 to `WIDEST`. */
  get stretch() {
    const { area, call } = this.first();
    const high = Math.min(area.height / call.queries, LARGEST);
    return Math.min(Math.max(area.width / call.keys / high, 1), WIDEST);
  }

  /** The scale at which the whole head is in sight. */
  get whole() {
    const { area, call } = this.first();
    return Math.min(area.width / call.keys / this.stretch, area.height / call.queries, LARGEST);
  }

  /** What a link says; without numbers, the whole head. */
  set({ x, y, scale }) {
    if (this.pointers.size || this.saving) return; // it is being moved: the link comes after
    this.chosen = [x, y, scale].every(Number.isFinite) && scale > 0 ? this.inside({ x, y, scale }) : null;
  }

  inside({ x, y, scale }) {
    const { area, call } = this.first();
    const { stretch } = this;
    const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
    const near = clamp(scale, this.whole, LARGEST);
    const reach = (count, span) => Math.max(count, span / near / 2);
    return {
      x: clamp(x, 0, reach(call.keys, area.width / stretch)),
      y: clamp(y, 0, reach(call.queries, area.height)),
      scale: near,
    };
  }

  move(camera) {
    const chosen = this.inside(camera);
    this.chosen = chosen;
    this.moved();
    clearTimeout(this.saving);
    this.saving = setTimeout(() => {
      this.saving = 0;
      const round = (value) => Number(value.toPrecision(7));
      this.rested({ x: round(chosen.x), y: round(chosen.y), scale: round(chosen.scale) });
    }, 200);
  }

  by(across, down) {
    const { x, y, scale, stretch } = this.now;
    this.move({ x: x + across / (scale * stretch), y: y + down / scale, scale });
  }

  /** Zoom so that what lies under (px, py) of a panel stays there; without them about the middle. */
  zoom(factor, panel = this.first(), px = NaN, py = NaN) {
    const { x, y, scale, stretch } = this.now;
    const { area } = panel;
    const [dx, dy] = Number.isNaN(px)
      ? [0, 0]
      : [(px - area.x - area.width / 2) / stretch, py - area.y - area.height / 2];
    const next = this.inside({ x, y, scale: scale * factor }).scale;
    this.move({ x: x + dx / scale - dx / next, y: y + dy / scale - dy / next, scale: next });
  }

  showAll() {
    clearTimeout(this.saving);
    this.saving = 0;
    this.chosen = null;
    this.rested({ x: null, y: null, scale: null });
    this.moved();
  }

  listen(panel) {
    const { node } = panel.board;
    node.addEventListener("pointerdown", (event) => {
      node.setPointerCapture(event.pointerId);
      const now = place(event, node);
      this.pointers.set(event.pointerId, now);
      this.pointed(panel.under(now.x, now.y)); // a finger that taps does not move
    });
    node.addEventListener("pointermove", (event) => {
      const now = place(event, node);
      if (this.pointers.has(event.pointerId)) this.drag(panel, event.pointerId, now);
      this.pointed(panel.under(now.x, now.y));
    });
    for (const end of ["pointerup", "pointercancel"])
      node.addEventListener(end, (event) => this.pointers.delete(event.pointerId));
    node.addEventListener("pointerleave", (event) => {
      // A finger that is lifted leaves as well: what it tapped is still to be read.
      if (!this.pointers.size && event.pointerType !== "touch") this.pointed(null);
    });
    node.addEventListener("dblclick", (event) => {
      const { x, y } = place(event, node);
      this.zoom(event.shiftKey ? 1 / 4 : 4, panel, x, y);
    });
    const wheel = (event) => {
      event.preventDefault();
      const { x, y } = place(event, node);
      const pixels = event.deltaY * (event.deltaMode === 1 ? 16 : 1);
      const pace = event.ctrlKey ? 0.01 : 0.002; // a pinch on a touchpad is ctrl and wheel
      this.zoom(Math.exp(-pixels * pace), panel, x, y);
      this.pointed(panel.under(x, y));
    };
    node.addEventListener("wheel", wheel, { passive: false });
  }

  /** One finger moves; two also zoom, about the one that stays. */
  drag(panel, id, now) {
    const before = this.pointers.get(id);
    const still = [...this.pointers].find(([other]) => other !== id)?.[1];
    this.pointers.set(id, now);
    if (!still) return this.by(before.x - now.x, before.y - now.y);
    const apart = (at) => Math.max(20, Math.hypot(at.x - still.x, at.y - still.y));
    this.zoom(apart(now) / apart(before), panel, still.x, still.y);
  }

  close() {
    clearTimeout(this.saving);
  }
}

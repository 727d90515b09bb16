// The map's camera: which weight is in the middle, and how many pixels a weight is high and wide. Pointers and wheels move it.
import { place } from "../../draw/canvas.js";

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

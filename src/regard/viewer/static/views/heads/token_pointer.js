// Pointing at tokens of the Heads view: with a mouse, a finger or the arrow keys.
import { place } from "../../draw/canvas.js";
import { bounded } from "../../draw/numbers.js";
import { withRange } from "./heads_pins.js";
import { PAD } from "./link_lines.js";

/** @typedef {import("./heads_pins.js").Pin} Pin */

const STILL = 10; // pixels: a finger that moves farther scrolls

/** `view` is the Heads view: its panels, sides, pins and state. What is pointed at in one panel is so in all. */
export class TokenPointer {
  constructor(view) {
    this.view = view;
    /** The token that is pointed at. @type {Pin | null} */
    this.hover = null;
    /** The token that was pointed at or pressed last. @type {Pin | null} */
    this.last = null;
    /** Where a drag over several tokens began, with the pins of that moment. @type {(Pin & {before: Pin[]}) | null} */
    this.dragged = null;
    /** Where a finger went down. @type {{x: number, y: number} | null} */
    this.tapped = null;
  }

  /** Follow the pointer over one panel. @param {import("./layer_panel.js").LayerPanel} panel */
  listen(panel) {
    const { pane, box } = panel;
    pane.addEventListener("pointermove", (event) => this.moved(event, panel));
    pane.addEventListener("pointerleave", () => this.point(null));
    pane.addEventListener("pointerdown", (event) => this.pressed(event, panel));
    pane.addEventListener("pointerup", (event) => this.released(event, panel));
    // A finger that scrolls: the browser ends the pointer, and nothing is chosen.
    pane.addEventListener("pointercancel", () => {
      [this.dragged, this.tapped] = [null, null];
      this.point(null);
    });
    box.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
  }

  /** The labels are others now: `renamed(pin)` is where a token stands among them. */
  follow(renamed) {
    if (this.hover) this.hover = renamed(this.hover);
    if (this.last) this.last = renamed(this.last);
  }

  labels(side) {
    return this.view.sideOf({ side }).labels;
  }

  /** The label under the pointer. @returns {Pin | null} */
  under(event, panel) {
    const { view } = this;
    const { x, y } = place(event, panel.pane);
    const { left, right } = panel.columns();
    const side = x <= left + 24 ? "query" : x >= right - 24 ? "key" : null;
    if (!side) return null;
    const at = Math.floor((y + panel.box.scrollTop - PAD) / panel.row) + (side === "key" ? view.shift : 0);
    return at >= 0 && at < this.labels(side).length ? { side, at } : null;
  }

  moved(event, panel) {
    if (event.pointerType === "touch") return; // a finger that moves scrolls
    const pin = this.under(event, panel);
    if (this.dragged && pin && pin.side === this.dragged.side)
      this.view.keep(withRange(this.dragged.before, this.dragged, pin));
    this.point(pin);
  }

  point(pin) {
    if (pin?.side === this.hover?.side && pin?.at === this.hover?.at) return;
    this.hover = pin;
    this.view.paint();
  }

  pressed(event, panel) {
    if (event.pointerType === "touch") this.tapped = { x: event.clientX, y: event.clientY };
    else this.choose(event, panel);
  }

  released(event, panel) {
    this.dragged = null;
    const from = this.tapped;
    this.tapped = null;
    if (from && Math.hypot(event.clientX - from.x, event.clientY - from.y) < STILL) this.choose(event, panel);
  }

  /** The token under the pointer alone; with Shift all from the last one on, with Control one more. */
  choose(event, panel) {
    const { view } = this;
    const pin = this.under(event, panel);
    if (!pin) return;
    if (event.shiftKey && this.last?.side === pin.side) view.keep(withRange(view.pins, this.last, pin));
    else {
      view.toggle(pin, event.ctrlKey || event.metaKey);
      if (event.pointerType !== "touch") this.dragged = { ...pin, before: view.pins };
    }
    this.last = pin;
  }

  /** Shift and the wheel move the keys alone. */
  wheeled(event) {
    if (!event.shiftKey) return;
    event.preventDefault();
    this.moveKeys(Math.sign(event.deltaY || event.deltaX) * 3);
  }

  moveKeys(by) {
    const most = this.labels("key").length - 1;
    this.view.context.state.set({ shift: bounded(this.view.shift + by, -most, most) || null });
  }

  /** To the next token of a column. */
  step(by) {
    const { side, at } = this.hover ?? this.last ?? { side: "query", at: by > 0 ? -1 : 1 };
    this.reveal({ side, at: Math.min(this.labels(side).length - 1, Math.max(0, at + by)) });
  }

  /** To the other column. */
  cross(side) {
    this.reveal({ side, at: Math.min(this.labels(side).length - 1, this.hover?.at ?? 0) });
  }

  /** Point at a token and scroll to it. */
  reveal(pin) {
    const { box, row, shift } = this.view;
    const y = (pin.at - (pin.side === "key" ? shift : 0)) * row;
    const height = box.clientHeight - 2 * row;
    if (y < box.scrollTop) box.scrollTop = y;
    else if (y > box.scrollTop + height) box.scrollTop = y - height;
    this.last = pin;
    this.point(pin);
  }
}

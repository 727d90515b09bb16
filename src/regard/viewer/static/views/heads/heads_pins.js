// Pins of the Heads view: labels that stay chosen. A link names them by the positions of their tokens, "q3" or "k10", so
// that they mean the same between tokens and between words.
import { labelAt } from "../../data/tokens.js";

/** @typedef {{side: "query" | "key", at: number}} Pin a label that is pointed at or pinned */

/** @param {Pin} pin */
function nameOf({ side, at }) {
  return `${side[0]}${at}`;
}

/** Each label once. @param {Pin[]} pins */
export function unique(pins) {
  return [...new Map(pins.map((pin) => [nameOf(pin), pin])).values()];
}

/** Pins without one that is among them, or with one that is not. @param {Pin[]} pins @param {Pin} pin */
export function toggled(pins, pin) {
  const rest = pins.filter((one) => nameOf(one) !== nameOf(pin));
  return rest.length < pins.length ? rest : [...pins, pin];
}

/** Pins and everything between two labels of one side. @param {Pin[]} pins @param {Pin} from @param {Pin} to */
export function withRange(pins, from, to) {
  const [a, b] = [Math.min(from.at, to.at), Math.max(from.at, to.at)];
  const range = Array.from({ length: b - a + 1 }, (_, i) => ({ side: from.side, at: a + i }));
  const names = new Set(range.map(nameOf));
  return [...pins.filter((pin) => !names.has(nameOf(pin))), ...range];
}

/** The names of pins in a link. `sideOf(pin)` is the side of a call that a pin is on. @param {Pin[]} pins */
export function pinNames(pins, sideOf) {
  return pins.flatMap((pin) => sideOf(pin).groups[pin.at].map((at) => nameOf({ ...pin, at })));
}

/** The pins that a link names; what it says otherwise is left out. @returns {Pin[]} */
export function pinsNamed(names, sideOf) {
  const known = (Array.isArray(names) ? names : [])
    .filter((name) => /^[qk]\d+$/.test(name))
    .map((name) => /** @type {Pin} */ ({ side: name[0] === "q" ? "query" : "key", at: Number(name.slice(1)) }))
    .filter((pin) => pin.at < sideOf(pin).tokens.length);
  return unique(known.map((pin) => ({ ...pin, at: labelAt(sideOf(pin), pin.at) })));
}

// What the Neuron view says of the key or the number that is pointed at.
import { number } from "../../draw/numbers.js";

/** The key or the number that is pointed at, in words; null where none is, or it is on its way. */
export function keyReading(view) {
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

// A place to drop a file on, or to choose one with a button.
import { el } from "./dom.js";

/** `taken(file)` gets one file of at most `most` bytes; anything else is told to `failed(error)`. */
export function makeDrop(target, { label, accept, most, taken, failed }) {
  const take = (file) => {
    if (!file) return;
    const count = (bytes) => bytes.toLocaleString("en");
    if (most && file.size > most)
      failed(
        new Error(`${file.name} has ${count(file.size)} bytes; at most ${count(most)} are taken: make it smaller`),
      );
    else taken(file);
  };
  const input = el("input.unseen", {
    type: "file",
    accept,
    "aria-label": label,
    onchange: () => take(input.files?.[0]),
  });
  const root = el("label.drop", {}, label, input);
  const over = (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    target.classList.add("dropping");
  };
  const leave = () => target.classList.remove("dropping");
  const drop = (event) => {
    event.preventDefault();
    leave();
    take(event.dataTransfer.files[0]);
  };
  const listeners = { dragover: over, dragleave: leave, drop };
  for (const [name, listener] of Object.entries(listeners)) target.addEventListener(name, listener);
  return {
    root,
    close() {
      for (const [name, listener] of Object.entries(listeners)) target.removeEventListener(name, listener);
    },
  };
}

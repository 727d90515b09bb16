// A notebook's kernel as a source of data (source.js).
import { decoded, keyOf } from "./source.js";

/** A notebook: the kernel answers messages of an anywidget model, which has `send` and "msg:custom". */
export class WidgetSource {
  constructor(model) {
    this.model = model;
    this.waiting = new Map();
    // One widget may be shown twice, and each view hears the answers to both. No randomUUID: a notebook over plain http
    // has none.
    this.name = crypto.getRandomValues(new Uint32Array(4)).join("-");
    this.next = 0;
    this.hear = (message, buffers) => {
      const waiting = this.waiting.get(message.id);
      if (!waiting) return;
      this.waiting.delete(message.id);
      if (message.error) waiting.reject(new Error(message.error));
      else waiting.resolve({ ...message, buffer: buffers?.[0] });
    };
    model.on("msg:custom", this.hear);
  }

  async get(path, params, signal) {
    return (await this.ask("GET", keyOf(path, params), null, signal)).json;
  }

  async array(path, params, signal) {
    const found = await this.ask("GET", keyOf(path, params), null, signal);
    const { shape, type, peaks = [], computed = 1, note = "", buffer } = found;
    const bytes = new Uint8Array(buffer.buffer ?? buffer, buffer.byteOffset ?? 0, buffer.byteLength);
    return { data: decoded(bytes.slice().buffer, type), shape, type, peaks, computed, note };
  }

  async post(path, body, signal) {
    const buffers = body instanceof Blob ? [await body.arrayBuffer()] : [];
    return (await this.ask("POST", path, buffers.length ? null : body, signal, buffers)).json;
  }

  ask(method, path, body, signal, buffers = []) {
    const id = `${this.name}/${this.next++}`;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      signal?.addEventListener("abort", () => {
        if (!this.waiting.delete(id)) return;
        this.model.send({ id, method: "CANCEL" });
        reject(new DOMException("cancelled", "AbortError"));
      });
      this.model.send({ id, method, path, body }, undefined, buffers);
    });
  }

  close() {
    this.model.off("msg:custom", this.hear);
  }
}

// The server that the page came from, as a source of data (source.js).
import { decoded, keyOf } from "./source.js";

const PAUSES = [250, 500, 1000, 2000, 4000]; // milliseconds before a busy server is asked again

export class HttpSource {
  constructor(base = "") {
    this.base = base;
  }

  async get(path, params, signal) {
    return (await this.answer(path, params, { signal })).json();
  }

  async array(path, params, signal) {
    const answer = await this.answer(path, params, { signal });
    const [shape, type] = [numbers(answer.headers.get("X-Shape")), answer.headers.get("X-Type")];
    const data = decoded(await answer.arrayBuffer(), type);
    const computed = Number(answer.headers.get("X-Computed") ?? 1);
    const note = answer.headers.get("X-Note") ?? "";
    return { data, shape, type, peaks: numbers(answer.headers.get("X-Peaks")), computed, note };
  }

  async post(path, body, signal) {
    const blob = body instanceof Blob;
    const headers = { "Content-Type": blob ? body.type || "application/octet-stream" : "application/json" };
    const options = { method: "POST", headers, body: blob ? body : JSON.stringify(body), signal };
    return (await this.answer(path, {}, options)).json();
  }

  async answer(path, params, options) {
    for (let tries = 0; ; tries++) {
      let response;
      try {
        response = await fetch(this.base + keyOf(path, params), options);
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Error("the server does not answer: was `regard view` stopped? Start it again and reload this page");
      }
      if (response.ok) return response;
      if (response.status !== 503 || tries >= PAUSES.length) throw new Error(await reason(response));
      await new Promise((resume) => setTimeout(resume, PAUSES[tries])); // an aborted signal ends the next fetch at once
    }
  }
}

function numbers(text) {
  return text ? text.split(",").map(Number) : [];
}

async function reason(response) {
  try {
    return (await response.json()).error ?? `the server answered ${response.status}`;
  } catch {
    return `the server answered ${response.status}`;
  }
}

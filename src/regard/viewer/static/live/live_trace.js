// A trace made in the browser: what a model attended to while it translated or continued a text, in the form of the API.

import { pooled } from "../data/pooling.js";
import { continueText, limitOf, replay, search } from "./beam_search.js";
import { classOf } from "./model_answers.js";
import { END, labelsOf } from "./tokenizer.js";

const THUMBNAIL = 32; // cells along a side

/** Greedy translation, watched: the encoder's attention, the decoder's own, and its attention over the source. */
export async function translationTrace(model, title, text, signal) {
  const ids = [...model.source.encode(text), END];
  const begun = await model.start(ids, [1, ids.length]);
  const found = await search(model, begun, { limit: limitOf(model, ids.length), beams: 1, signal });
  const steps = await replay(model, begun, found.tokens);
  const target = model.target.pieces([...found.tokens, END]);
  const sides = {
    source: labelsOf(model.source.pieces(ids)),
    target: labelsOf(target),
    read: labelsOf(["<s>", ...target.slice(0, -1)]),
  };
  const { layers } = model.about;
  const calls = [];
  const encoder = begun.encoded.encoder_weights;
  for (let layer = 0; encoder && layer < layers.encoder; layer++) {
    const heads = encoder.dims[1] / layers.encoder;
    const size = heads * ids.length * ids.length;
    const weights = encoder.data.slice(layer * size, (layer + 1) * size);
    calls.push(
      callOf(calls, `encoder.layers.${layer}.attention`, layer, "self", heads, "source", "source", weights, sides),
    );
  }
  for (let layer = 0; layer < layers.decoder; layer++)
    for (const [kind, name, keys] of [
      ["self", "self_weights", "read"],
      ["cross", "weights", "source"],
    ]) {
      if (!steps[0][name]) continue;
      const heads = steps[0][name].dims[1] / layers.decoder;
      const weights = stacked(
        steps.map((step) => step[name]),
        layer * heads,
        heads,
        sides[keys].tokens.length,
      );
      const module = layers.decoder > 1 || kind === "self" ? `decoder.layers.${layer}.${kind}` : "decoder";
      calls.push(callOf(calls, module, layer, kind, heads, "target", keys, weights, sides));
    }
  return finished(model, title, text, sides, calls, 0, 0);
}

/** A text and its label: how the classifier pooled the tokens. */
export async function classificationTrace(model, title, text) {
  const ids = [...model.source.encode(text), END];
  const result = await model.classify(ids, [1, ids.length]);
  if (!result.weights) throw new Error(`${title} gives no word a weight of its own`);
  const sides = { source: labelsOf(model.source.pieces(ids)), target: labelsOf([classOf(model, result).label]) };
  const weights = result.weights.data.slice();
  const call = callOf([], "pooling", 0, "cross", 1, "target", "source", weights, sides);
  return finished(model, title, text, sides, [call], 0, 0);
}

/** The likeliest continuation of a prompt, watched. */
export async function generationTrace(model, title, text, count, signal) {
  const prompt = model.target.continued(text);
  const unknown = [...text].find((symbol) => model.target.continued(symbol).includes(3));
  if (unknown) throw new Error(`this model does not know ${JSON.stringify(unknown)}; leave it out`);
  if (!prompt.length) throw new Error("the prompt holds no character of this model's vocabulary");
  if (prompt.length > model.about.longest)
    throw new Error(`the prompt has ${prompt.length} characters; this model reads ${model.about.longest} at most`);
  const { read, steps } = await continueText(model, prompt, count, signal);
  const written = read.slice(prompt.length).map((id) => model.target.running([id]));
  const sides = { text: labelsOf([...model.target.pieces(prompt), ...written]) };
  const calls = [];
  for (let layer = 0; layer < model.about.layers.decoder; layer++) {
    const heads = steps[0].self_weights.dims[1] / model.about.layers.decoder;
    const weights = stacked(
      steps.map((step) => step.self_weights),
      layer * heads,
      heads,
      read.length,
    );
    calls.push(
      callOf(calls, `decoder.layers.${layer}.attention`, layer, "self", heads, "text", "text", weights, sides),
    );
  }
  return finished(model, title, text, sides, calls, prompt.length, count);
}

/** Rows [1, maps, keys so far] of some heads as one [heads, queries, keys]; what lies ahead is 0. */
function stacked(rows, first, heads, keys) {
  const out = new Float32Array(heads * rows.length * keys);
  rows.forEach(({ data, dims }, at) => {
    const width = dims[2];
    for (let head = 0; head < heads; head++)
      out.set(data.subarray((first + head) * width, (first + head + 1) * width), (head * rows.length + at) * keys);
  });
  return out;
}

function callOf(before, name, layer, kind, heads, query_side, key_side, weights, sides) {
  const [queries, keys] = [sides[query_side].tokens.length, sides[key_side].tokens.length];
  const fidelity = {
    error: null,
    budget: null,
    kept: null,
    word: "computed in this browser, not checked against the output",
  };
  const id = String(before.length);
  const about = {
    id,
    name,
    layer,
    kind,
    heads,
    queries,
    keys,
    steps: [queries],
    origin: "onnx",
    fidelity,
    query_side,
    key_side,
  };
  return { about, weights };
}

/** {id, summary, json, arrays}: answers by path and parameters, as a single file holds them. */
function finished(model, title, text, sides, calls, prompt, generate) {
  const id = `live-${Math.abs(hash(`${model.name}\n${text}\n${prompt}\n${calls[0].about.queries}`)).toString(16)}`;
  const root = `/api/traces/${id}`;
  const first = Object.values(sides)[0];
  const part = (name) => Object.fromEntries(Object.entries(sides).map(([side, labels]) => [side, labels[name]]));
  const summary = {
    id,
    title: `${title.split(",")[0]} · ${text.slice(0, 60)}`,
    model: model.name,
    tokens: Math.max(...calls.flatMap(({ about }) => [about.queries, about.keys])),
    calls: calls.length,
    faithful: null,
  };
  const described = {
    ...summary,
    batch: 1,
    entry: 0,
    tokens: [first.tokens],
    words: [first.words],
    special: [first.special],
    sides: part("tokens"),
    side_words: part("words"),
    side_special: part("special"),
    side_sentences: {},
    prompt,
    missed: [],
    made: { model: model.name, text, second: null, generate },
    calls: calls.map(({ about }) => about),
  };
  const none = { heads: [], thresholds: {}, why: "patterns are computed by regard itself, not in the browser" };
  const json = {
    [root]: described,
    [`${root}/stats?entry=0`]: { calls: calls.map((call) => statistics(call, prompt)) },
    [`${root}/patterns?entry=0`]: none,
  };
  /** @type {Record<string, ArrayAnswer>} */
  const arrays = {};
  for (const { about, weights } of calls)
    arrays[`${root}/calls/${about.id}/weights?entry=0`] = {
      data: weights,
      shape: [about.heads, about.queries, about.keys],
      type: "float32",
      computed: 1,
      note: "",
    };
  for (const pool of ["max", "mean"])
    arrays[`${root}/thumbs?entry=0&pool=${pool}&size=${THUMBNAIL}`] = thumbnails(calls, pool);
  return { id, summary, json, arrays };
}

function hash(text) {
  let value = 0;
  for (const symbol of text) value = (value * 31 + (symbol.codePointAt(0) ?? 0)) | 0;
  return value;
}

/** For every head: mean entropy, mean largest weight, mean weight on the first key and on the prompt. */
function statistics({ about, weights }, prompt) {
  const { heads, queries, keys } = about;
  /** @type {Record<string, number[]>} */
  const found = { entropy: [], confidence: [], sink: [], prompt: [] };
  for (let head = 0; head < heads; head++) {
    const sums = { entropy: 0, confidence: 0, sink: 0, prompt: 0 };
    for (let i = 0; i < queries; i++) {
      const row = weights.subarray((head * queries + i) * keys, (head * queries + i + 1) * keys);
      row.forEach((w, j) => {
        if (w > 0) sums.entropy -= w * Math.log(w);
        if (i >= prompt && j < prompt) sums.prompt += w;
      });
      sums.confidence += Math.max(...row);
      sums.sink += row[0];
    }
    for (const name of ["entropy", "confidence", "sink"]) found[name].push(sums[name] / queries);
    found.prompt.push(sums.prompt / Math.max(1, queries - prompt));
  }
  const { prompt: shares, ...rest } = found;
  return {
    id: about.id,
    rows: queries,
    of: queries,
    ...rest,
    ...(prompt && prompt < queries ? { prompt: shares } : {}),
  };
}

/** Every head of every call as a small map: 255·√(w / peak), and the peaks. */
function thumbnails(calls, pool) {
  const maps = calls.flatMap(({ about: { heads, queries, keys }, weights }) =>
    Array.from({ length: heads }, (_, head) => {
      const rowAt = (i) => weights.subarray((head * queries + i) * keys, (head * queries + i + 1) * keys);
      const [height, width] = [queries, keys].map((n) => Math.min(n, THUMBNAIL));
      const cells = pooled(rowAt, queries, keys, {
        top: 0,
        left: 0,
        bottom: queries,
        right: keys,
        height,
        width,
        pool,
      });
      const at = (cell, n) => Math.floor((cell * n) / THUMBNAIL); // with fewer tokens than cells they are repeated
      return Float32Array.from(
        { length: THUMBNAIL * THUMBNAIL },
        (_, cell) => cells[at(Math.floor(cell / THUMBNAIL), height) * width + at(cell % THUMBNAIL, width)],
      );
    }),
  );
  const peaks = maps.map((map) => Math.max(...map));
  const data = new Uint8Array(maps.length * THUMBNAIL * THUMBNAIL);
  maps.forEach((map, at) => {
    map.forEach((w, cell) => (data[at * map.length + cell] = Math.round(255 * Math.sqrt(w / (peaks[at] || 1)))));
  });
  return { data, shape: [maps.length, THUMBNAIL, THUMBNAIL], type: "uint8", peaks, computed: 1, note: "" };
}

// Where the page gets its data: a server, a notebook's kernel, or the file the page is in. All answer alike:
//
//   await source.get(path, params, signal)    → JSON
//   await source.array(path, params, signal)  → {data, shape, type, peaks, computed, note}: `data` a Float32Array, or a
//       Uint8Array for "uint8"; `computed` is below 1 while a part is still to come, `note` says what is not all there is
//   await source.post(path, body, signal)     → JSON; `body` is an object, or a Blob
//
// Paths are those of the HTTP API, "/api/traces/…". What goes wrong is an Error whose message says what to do. A server
// that has too much to do (503) is asked again by the source itself, a few times, before that is an Error.

export const LATER = 5000; // milliseconds until a view may ask again for what failed

/** "/api/x" and {b: 1, a: [0, 3]} → "/api/x?a=0,3&b=1": one name for one question. */
export function keyOf(path, params = {}) {
  const parts = Object.entries(params ?? {})
    .filter(([, value]) => value != null)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, value]) => `${key}=${encodeURIComponent(String(value)).replace(/%(2C|3A)/g, decodeURIComponent)}`);
  return parts.length ? `${path}?${parts.join("&")}` : path;
}

/** The numbers of an answer: bytes, or floats as Float32. */
export function decoded(buffer, type) {
  if (type === "uint8") return new Uint8Array(buffer);
  if (type === "float16") return halves(new Uint16Array(buffer));
  return new Float32Array(buffer);
}

let table = null;

/** Float16 → Float32 by looking each of the 65,536 up: not every browser has Float16Array. */
function halves(bits) {
  if (!table) {
    table = new Float32Array(65536);
    for (let i = 0; i < 65536; i++) {
      const [sign, exponent, fraction] = [i & 0x8000 ? -1 : 1, (i >> 10) & 31, i & 1023];
      if (exponent === 0) table[i] = sign * 2 ** -24 * fraction;
      else if (exponent === 31) table[i] = fraction ? NaN : sign * Infinity;
      else table[i] = sign * 2 ** (exponent - 15) * (1 + fraction / 1024);
    }
  }
  const out = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) out[i] = table[bits[i]];
  return out;
}

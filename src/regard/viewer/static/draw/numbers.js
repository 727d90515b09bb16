// Numbers as text.

/** 0.0312 → "0.031", 2e-5 → "2.0e-5", 0 → "0". */
export function number(x) {
  if (!Number.isFinite(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  return size < 0.0005 || size >= 1e5 ? x.toExponential(1) : size < 10 ? x.toFixed(3) : x.toFixed(1);
}

/** 1234567 → "1,234,567". */
export const count = (x) => x.toLocaleString("en");

/** A weight with the digits it has. */
export function exact(weight) {
  if (weight === 0) return "0";
  return weight >= 1e-3 ? weight.toFixed(5) : weight.toExponential(3).replace("e-", "e−");
}

/** 1, "head" → "1 head"; 2, "head" → "2 heads". */
export function counted(n, noun) {
  return `${n} ${noun}${n === 1 ? "" : "s"}`;
}

/** A number within bounds; `usual` where it is none. */
export function bounded(value, low, high, usual = low) {
  return Number.isFinite(value) ? Math.max(low, Math.min(high, value)) : usual;
}

// Positions: what a query at position p and a key at position j are told about where they stand.
// As regard.layers.SinusoidalPositions, regard.Rotary and regard.Alibi; tests/static/ holds the two together.

import { ROTARY_BASE } from "../../data/constants.js";

/** Angles of the planes at a position: p · base^(−i/planes). */
const angles = (position, planes) => Array.from({ length: planes }, (_, i) => position * ROTARY_BASE ** (-i / planes));
const mean = (all) => all.reduce((a, b) => a + b, 0) / all.length;
const cosines = (distance, width) => mean(angles(distance, width / 2).map(Math.cos));

/** PE(p): sine and cosine take turns. */
export const sinusoid = (position, width) =>
  angles(position, width / 2).flatMap((angle) => [Math.sin(angle), Math.cos(angle)]);

/** A vector rotated in the planes (x_i, x_{i + d/2}). */
export function rotated(vector, position) {
  const planes = vector.length / 2;
  const turns = angles(position, planes);
  return vector.map((x, d) => {
    const angle = turns[d % planes];
    const other = d < planes ? -vector[d + planes] : vector[d - planes];
    return x * Math.cos(angle) + other * Math.sin(angle);
  });
}

// `vector` is what becomes of q or k at a position, `bias` what is added to the energy of a key `distance` = j − p away,
// `row` the picture of one position, `byDistance` what is left of the energy of equal vectors, or the bias itself.
export const POSITIONS = {
  none: { title: "None", equation: "", vector: (x) => x, bias: () => 0 },
  sinusoidal: {
    title: "Sinusoidal",
    equation: "q + PE(p), k + PE(j)",
    even: true,
    vector: (x, position) => sinusoid(position, x.length).map((add, d) => x[d] + add),
    bias: () => 0,
    row: sinusoid,
    rows: "PE, one row per position",
    byDistance: cosines,
    curve: "PE(p) · PE(p + distance), by its length",
  },
  rotary: {
    title: "Rotary",
    equation: "R(p) q, R(j) k",
    even: true,
    vector: rotated,
    bias: () => 0,
    row: (position, width) => angles(position, width / 2).map(Math.cos),
    rows: "cosines of the angles, one row per position",
    byDistance: cosines,
    curve: "what the rotation leaves of q · q",
  },
  alibi: {
    title: "ALiBi",
    equation: "e − m |p − j|",
    vector: (x) => x,
    bias: (distance, { slope }) => -slope * Math.abs(distance),
    row: (position, width, { slope }) => Array.from({ length: width }, (_, j) => -slope * Math.abs(position - j)),
    rows: "bias, one row per query, one column per key",
    byDistance: (distance, _, { slope }) => -slope * Math.abs(distance),
    curve: "what is added to the energy",
    parameter: { name: "slope", label: "slope m", least: 0.01, most: 2, start: 0.5 },
  },
};

export const MOST_POSITION = 31;

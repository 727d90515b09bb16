// A row of the look-up's table: a key and its value, and bars for its energy and its weight.
import { el } from "../../draw/dom.js";
import { figure } from "./lookup_examples.js";

/** A row of the table: its cells, and bars of its energy and weight. `changed(patch)`: one of them was edited. */
export function tableRow(row, at, { changed, removed }) {
  const input = (name) => {
    const box = el("input", {
      type: "text",
      value: row[name],
      "aria-label": `${name} ${at + 1}`,
      spellcheck: "false",
      oninput: () => changed({ [name]: box.value }),
    });
    return box;
  };
  const see = el("input", {
    type: "checkbox",
    checked: !row.masked,
    "aria-label": `see key ${at + 1}`,
    onchange: () => changed({ masked: !see.checked }),
  });
  const remove = el(
    "button.strike",
    { type: "button", "aria-label": `remove entry ${at + 1}`, onclick: () => removed() },
    "×",
  );
  const [key, value, energyBar, weightBar] = [input("key"), input("value"), bar("energy"), bar("weight")];
  const named = el(
    "span.row-key",
    {},
    el("span.row-place", {}, String(at)),
    row.label ? el("span.row-label", {}, row.label) : null,
    key,
  );
  const inside = [see, named, energyBar.root, weightBar.root, value, remove].map((child) => el("td", {}, child));
  return { line: el("tr", {}, ...inside), key, value, energy: energyBar, weight: weightBar, remove };
}

function bar(kind) {
  const [number, mark] = [el("span.figure"), el(`span.fill.${kind}`)];
  return { root: el("span.barred", {}, number, el("span.track", {}, mark)), number, mark };
}

/** A bar from zero; where no number is above zero, as with negative distances, from the least: the best is the longest. */
export function fillBar({ number, mark }, value, least, most) {
  number.textContent = value == null ? "—" : figure(value);
  const range = most - least || 1;
  const ground = most <= 0 ? least : 0;
  const [from, to] = value == null ? [0, 0] : [Math.min(value, ground), Math.max(value, ground)];
  mark.style.left = `${((from - least) / range) * 100}%`;
  mark.style.width = `${((to - from) / range) * 100}%`;
}

// Elements, made in one line. Data only ever becomes text: nothing here reads markup.

/** el("button.quiet", {onclick: f, "aria-label": "Close"}, "text", child): on… are listeners, the rest attributes.
 *
 * @template {string} Name
 * @param {Name} name tag and classes
 * @param {Record<string, any>} attributes
 * @param {(Node | string | null | undefined)[]} children
 * @returns {ElementOf<Name>}
 */
export function el(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = /** @type {any} */ (document.createElement(tag));
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in DIRECT) node[key] = value;
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, String(value));
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

const DIRECT = { value: 1, checked: 1, disabled: 1, hidden: 1, selected: 1, htmlFor: 1, tabIndex: 1 };

/** A select with a label: options are [value, text] pairs. */
export function choice(label, options, value, changed, attributes = {}) {
  const select = el(
    "select",
    { ...attributes, onchange: () => changed(select.value) },
    ...options.map(([key, text]) => el("option", { value: key, selected: String(key) === String(value) }, text)),
  );
  return el("label.field", {}, el("span", {}, label), select);
}

/** A row of buttons of which one is pressed: options are [value, text] pairs. */
export function segments(label, options, value, changed) {
  const buttons = options.map(([key, text, title]) =>
    el("button", { type: "button", title, "aria-pressed": String(key === value), onclick: () => changed(key) }, text),
  );
  const group = el("div.segments", { role: "group", "aria-label": label }, ...buttons);
  const show = (chosen) =>
    options.forEach(([key], at) => buttons[at].setAttribute("aria-pressed", String(key === chosen)));
  return Object.assign(group, { show });
}

/** A tick box with its label. */
export function tick(label, checked, changed, title = "") {
  const box = el("input", { type: "checkbox", checked, onchange: () => changed(box.checked) });
  const field = el("label.tick", { title }, box, el("span", {}, label));
  const show = (value) => {
    box.checked = value;
  };
  return Object.assign(field, { show });
}

/** A slider with its label and its value in words. */
export function slider(label, range, value, words, changed, title = "") {
  const out = el("output", {}, words(value));
  const input = el("input", {
    type: "range",
    min: range[0],
    max: range[1],
    step: range[2],
    value: String(value),
    oninput: () => {
      out.textContent = words(Number(input.value));
      changed(Number(input.value));
    },
  });
  const field = el("label.field", { title }, el("span", {}, label), input, out);
  const show = (now) => {
    input.value = String(now);
    out.textContent = words(now);
  };
  return Object.assign(field, { show });
}

// "Type a sentence": always on the page. A model reads it while its attention is watched, and the new trace is shown.
import { el } from "../draw/elements.js";

/** Tasks of models that can be watched, and what one may try with them. */
const EXAMPLES = {
  read: [
    "The cat sat on the mat because it was tired, and the dog let it sleep.",
    "The lawyer thanked the doctors because they had found her key.",
    "Time flies like an arrow, but fruit flies like a banana.",
  ],
  translate: ["My sister has a small black dog.", "I would like to know where the station is."],
  generate: ["My lord, the night is", "Once upon a time there was a", "The capital of France is"],
  classify: [
    "The soup was not bad, but I would not call the waiter friendly.",
    "I liked the hotel, although the room was small.",
  ],
};
const DOES = { read: "reads", translate: "translates", generate: "continues", classify: "classifies" };
const WRITTEN = 32; // tokens that a model writes

/** `made(id)` is called with a new trace; `waiting` is the line of a run. `more` of the form are its settings. */
export function sentenceForm(source, about, { made, fail, waiting }) {
  const order = Object.keys(EXAMPLES);
  const models = about.models
    .filter((model) => model.task in EXAMPLES && model.attends !== false)
    .sort((a, b) => order.indexOf(a.task) - order.indexOf(b.task));
  let chosen = models.find((model) => model.task === "read") ?? models[0];
  /** @type {AbortController | null} */
  let running = null;
  let shown = chosen; // the model of the trace on the page
  const input = el("input", {
    type: "text",
    "aria-label": "Type a sentence",
    placeholder: "Type a sentence …",
    maxlength: about.limits.text,
    autocomplete: "off",
  });
  const picker = el("select", { "aria-label": "Model", onchange: () => choose(models[Number(picker.value)]) });
  const other = el("option", { value: "", hidden: true });
  const groups = order.map((task) =>
    el(
      "optgroup",
      { label: `${DOES[task]} a text` },
      ...models.flatMap((model, at) => (model.task === task ? [el("option", { value: at }, nameOf(model))] : [])),
    ),
  );
  picker.append(other, ...groups.filter((group) => group.children.length));
  const examples = el("div.examples", { role: "group", "aria-label": "Examples" });
  const status = el("span.status", { role: "status" });
  const root = el(
    "form.sentence-form",
    {
      hidden: !models.length,
      onsubmit: (event) => {
        event.preventDefault();
        run(input.value);
      },
    },
    input,
    picker,
    el("button.primary", { type: "submit" }, "Run"),
    examples,
    status,
  );
  const second = el("input", { type: "text" });
  const count = el("input", { type: "number", min: 0, max: about.limits.generated, value: WRITTEN });
  const pair = el("label.field", el("span", "Second sentence"), second);
  const length = el("label.field", el("span", "Tokens to write"), count);

  /** Ends the run before, if there is one. */
  async function run(text) {
    if (!text.trim()) {
      status.textContent = "Type a sentence first, or choose an example.";
      return input.focus();
    }
    running?.abort();
    const control = new AbortController();
    running = control;
    status.textContent = "";
    show();
    const seen = waiting.begin(`${nameOf(chosen)} “${text.trim()}”`, () => control.abort());
    const generate = chosen.task === "generate" ? { generate: Number(count.value) } : {};
    const other = chosen.task === "read" && second.value.trim() ? { second: second.value } : {};
    try {
      const body = { model: chosen.name, text, ...generate, ...other };
      const { id } = await source.post("/api/traces", body, control.signal);
      if (running === control) await made(id);
    } catch (error) {
      if (running === control) {
        fail(error);
        back(error);
      }
    } finally {
      waiting.end(seen);
    }
  }

  /** The picture is still that of the model before: it is the chosen one again. */
  function back(error) {
    chosen = shown ?? chosen;
    show();
    if (error.name === "AbortError") status.textContent = "Cancelled: the picture is the one before.";
  }

  function show(away = "") {
    pair.hidden = chosen?.task !== "read";
    length.hidden = chosen?.task !== "generate";
    other.textContent = away;
    other.hidden = !away;
    picker.value = away ? "" : String(models.indexOf(chosen));
    const words = chosen ? (chosen.examples?.length ? chosen.examples : EXAMPLES[chosen.task]) : [];
    examples.replaceChildren(
      el("span.quietly", "Try"),
      ...words.map((text) => {
        const begins = chosen.task === "generate" && !/[.!?]$/.test(text); // which the model continues
        const attributes = { title: text, onclick: () => begin(chosen, text) };
        return el("button.quiet.example", attributes, begins ? `${text} …` : text);
      }),
    );
  }

  function choose(model) {
    chosen = model;
    show();
    if (input.value.trim()) run(input.value);
    else status.textContent = `${nameOf(model)}: type a sentence, or choose an example.`;
  }

  function begin(model, text) {
    chosen = model;
    input.value = oneLine(text);
    return run(text);
  }

  show();
  return Object.assign(root, {
    /** What may be said besides: a second sentence, or how many tokens to write. */
    more: [pair, length],
    possible: models.length > 0,
    /** The text and the model of the trace that is shown; one that cannot run here is named all the same. @param {Trace | null} trace */
    follow(trace) {
      const { model: name, text } = trace?.made ?? {};
      if (text !== undefined && document.activeElement !== input) input.value = oneLine(text);
      second.value = trace?.made?.second ?? "";
      shown = models.find((model) => model.name === name);
      chosen = shown ?? chosen;
      status.textContent = "";
      show(trace && !shown ? `${trace.model}: this picture` : "");
    },
    /** Runs the first model for a task on the text of the box, or on an example where it is empty; null without a model. */
    sample: (task) => {
      const model = models.findLast((one) => one.task === task && !one.examples?.length); // one that knows any word
      return model ? () => begin(model, input.value.trim() || EXAMPLES[task][0]) : null;
    },
    knows: (name) => models.some((model) => model.name === name),
    focus: () => input.focus(),
  });
}

/** A field of one line joins lines without a space between them. */
function oneLine(text) {
  return text.replace(/\s*\n\s*/g, " ");
}

/** "MiniLM reads". */
function nameOf(model) {
  return `${shortTitle(model)} ${DOES[model.task]}`;
}

/** "MiniLM" of "MiniLM, reads English"; "Luong (phrase book)" of "Luong on the phrase book, English to French". */
function shortTitle(model) {
  return (model.title ?? model.name).split(",")[0].replace(/ on the (phrase book)$/, " ($1)");
}

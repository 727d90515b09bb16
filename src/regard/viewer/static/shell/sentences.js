// "Type a sentence": always on the page. A model reads it while its attention is watched, and the new trace is shown.
import { choice, el } from "../draw/elements.js";

/** Tasks of models that can be watched, and what one may try with them. */
const EXAMPLES = {
  read: [
    "The cat sat on the mat because it was tired, and the dog let it sleep.",
    "The lawyer thanked the doctors because they had found her key.",
    "Time flies like an arrow, but fruit flies like a banana.",
  ],
  translate: [
    "My sister has a small black dog.",
    "I would like to know where the station is.",
    "He did not eat because he was not hungry.",
  ],
  generate: ["My lord, the night is", "Once upon a time there was a", "The capital of France is"],
  classify: [
    "The soup was not bad, but I would not call the waiter friendly.",
    "I liked the hotel, although the room was small.",
    "Nobody could say that this film is boring.",
  ],
};
const DOES = { read: "reads", translate: "translates", generate: "continues", classify: "classifies" };
const WRITTEN = 32; // tokens that a model writes
const FADE = 28; // pixels at the end of the row of models that fade out

/** `made(id)` is called with a new trace, `more()` opens the dialog with all settings; `waiting` is the line of a run. */
export function sentenceForm(source, about, { made, more, fail, waiting }) {
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
  });
  const submit = el("button.primary", { type: "submit" }, "Run");
  const chips = el("div.chips", { role: "group", "aria-label": "Model" });
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
    el(
      "div.sentence-input",
      input,
      submit,
      el(
        "button.quiet",
        {
          title: "Second sentence, length …",
          "aria-label": "More settings",
          onclick: () => more(chosen?.name ?? "", input.value),
        },
        "…",
      ),
    ),
    examples,
    chips,
    status,
  );

  async function run(text) {
    if (!text.trim()) {
      status.textContent = "Type a sentence first, or choose an example.";
      return input.focus();
    }
    running?.abort();
    const control = new AbortController();
    running = control;
    submit.disabled = true;
    status.textContent = "";
    const seen = waiting.begin(`${shortTitle(chosen)} ${DOES[chosen.task]} “${text.trim()}”`, () => control.abort());
    const generate = chosen.task === "generate" ? { generate: Math.min(WRITTEN, about.limits.generated) } : {};
    try {
      const { id } = await source.post("/api/traces", { model: chosen.name, text, ...generate }, control.signal);
      await made(id);
    } catch (error) {
      fail(error);
      if (running === control) back(error);
    } finally {
      waiting.end(seen);
      if (running === control) submit.disabled = false;
    }
  }

  /** The picture is still that of the model before: its button is the pressed one again. */
  function back(error) {
    chosen = shown;
    show();
    if (error.name === "AbortError") status.textContent = "Cancelled: the picture is the one before.";
  }

  function show() {
    chips.replaceChildren(
      ...models
        .flatMap((model, at) => [
          model.task === models[at - 1]?.task ? null : el("span.chip-task.quietly", DOES[model.task]),
          el(
            "button.chip",
            {
              title: model.title,
              "aria-pressed": String(model === chosen),
              onclick: () => {
                chosen = model;
                show();
                if (input.value.trim()) run(input.value);
                else
                  status.textContent = `${shortTitle(model)} has not run yet: type a sentence, or choose an example.`;
              },
            },
            shortTitle(model),
          ),
        ])
        .filter((part) => part !== null),
    );
    reveal();
    const words = chosen ? (chosen.examples?.length ? chosen.examples : EXAMPLES[chosen.task]) : [];
    examples.replaceChildren(
      el("span.quietly", "Try"),
      ...words.map((text) =>
        el(
          "button.quiet.example",
          {
            title: text,
            onclick: () => {
              input.value = text;
              run(text);
            },
          },
          chosen.task === "generate" && !/[.!?]$/.test(text) ? `${text} …` : text, // a beginning, which the model continues
        ),
      ),
    );
  }

  /** The pressed model, where there are more than fit: it is scrolled to, and nothing but the row of models moves. */
  function reveal() {
    const [pressed, row] = [chips.querySelector("[aria-pressed=true]"), chips].map((x) => x?.getBoundingClientRect());
    if (pressed && row && (pressed.left < row.left || pressed.right > row.right - FADE))
      chips.scrollLeft += pressed.left - row.left - FADE;
  }

  function begin(model, text) {
    chosen = model;
    input.value = text;
    show();
    return run(text);
  }

  show();
  return Object.assign(root, {
    /** The text and the model of the trace that is shown. @param {Trace | null} trace */
    follow(trace) {
      const { model: name, text } = trace?.made ?? {};
      if (text !== undefined && document.activeElement !== input) input.value = oneLine(text);
      chosen = models.find((model) => model.name === name) ?? chosen;
      shown = chosen;
      status.textContent = "";
      show();
    },
    /** Runs the first model for a task on the text of the box, or on an example where it is empty; null without a model. */
    sample: (task) => {
      const model = models.find((one) => one.task === task);
      return model ? () => begin(model, input.value.trim() || EXAMPLES[task][0]) : null;
    },
    /** The text that a run would read. */
    text: () => input.value.trim(),
    knows: (name) => models.some((model) => model.name === name),
    focus: () => input.focus(),
  });
}

/** A field of one line joins lines without a space between them. */
function oneLine(text) {
  return text.replace(/\s*\n\s*/g, " ");
}

/** "MiniLM" of "MiniLM, reads English"; "Luong (phrase book)" of "Luong on the phrase book, English to French". */
function shortTitle(model) {
  return (model.title ?? model.name).split(",")[0].replace(/ on the (phrase book)$/, " ($1)");
}

const READ = "read"; // the task of models that can be watched while they read a text

/** A dialog; `done(id)` is called with the new trace. `possible` is whether there is a model to do it. */
export function readDialog(root, source, about, done) {
  const models = about.models.filter((model) => [READ, "generate", "translate", "classify"].includes(model.task));
  const dialog = el("dialog.reading", { "aria-label": "Another text" });
  root.append(dialog);
  let running = null;

  /** `name` and `sentence` are the model and the text to begin with. */
  const open = (name = "", sentence = "") => {
    if (!models.length) return;
    let chosen = models.find((model) => model.name === name) ?? models[0];
    const text = el("textarea", {
      rows: 4,
      "aria-label": "Text",
      placeholder: "A sentence or a page",
      required: true,
      value: sentence,
      onkeydown: (event) => {
        if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
        event.preventDefault();
        form.requestSubmit();
      },
    });
    const second = el("input", { type: "text", placeholder: "only for models that read pairs" });
    const tokens = el("input", { type: "number", min: 0, max: about.limits.generated, value: "24" });
    const status = el("p.status", { role: "status" });
    const submit = el("button.primary", { type: "submit" }, "Run");
    const generate = el("label.field", el("span", "Tokens to write"), tokens);
    const pair = el("label.field.wide", el("span", "Second sentence"), second);
    const show = () => {
      generate.hidden = chosen.task !== "generate";
      pair.hidden = chosen.task !== READ;
    };
    const pick = (name) => {
      chosen = models.find((model) => model.name === name);
      show();
    };
    const form = el(
      "form",
      {
        onsubmit: async (event) => {
          event.preventDefault();
          running = new AbortController();
          submit.disabled = true;
          status.textContent = "Reading …";
          try {
            const body = { model: chosen.name, text: text.value };
            if (!pair.hidden && second.value.trim()) body.second = second.value;
            if (!generate.hidden && Number(tokens.value) > 0) body.generate = Number(tokens.value);
            const { id } = await source.post("/api/traces", body, running.signal);
            dialog.close();
            await done(id);
          } catch (error) {
            if (error.name !== "AbortError") status.textContent = error.message;
          } finally {
            submit.disabled = false;
          }
        },
      },
      el("h2", "Another text"),
      choice(
        "Model",
        models.map((model) => [model.name, model.title ?? model.name]),
        chosen.name,
        pick,
      ),
      text,
      pair,
      generate,
      status,
      el(
        "div.buttons",
        submit,
        el("button", { onclick: () => dialog.close() }, "Cancel"),
        el("span.quietly", "Ctrl+Enter runs it"),
      ),
    );
    show();
    dialog.replaceChildren(form);
    dialog.showModal();
    text.focus();
  };
  dialog.addEventListener("close", () => running?.abort());
  return { open, possible: models.length > 0 };
}

// "Another text": run one of the models, with all its settings, and look at what it attended to.
import { choice, el } from "../draw/dom.js";

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
    const generate = el("label.field", {}, el("span", {}, "Tokens to write"), tokens);
    const pair = el("label.field.wide", {}, el("span", {}, "Second sentence"), second);
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
      el("h2", {}, "Another text"),
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
        {},
        submit,
        el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
        el("span.quietly", {}, "Ctrl+Enter runs it"),
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

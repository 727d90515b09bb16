// Links that name a model and a text.
import { el } from "../draw/dom.js";

/** A link names the model and the text as well as the trace: where the trace is not here, the model reads it again. */
export async function readLinkedText(shell) {
  const { trace, model, sentence, second, generate } = shell.state.get();
  const unknown = trace != null && !shell.about.traces.some(({ id }) => id === trace);
  if (!unknown || !model || sentence == null || !shell.sentence.knows(model)) return false;
  shell.parts.stage.replaceChildren(el("div.empty", {}, el("p", {}, `${model} reads the text of the link …`)));
  try {
    const body = { model, text: sentence, ...(second ? { second } : {}), ...(generate ? { generate } : {}) };
    const { id } = await shell.source.post("/api/traces", body);
    shell.about = await shell.source.get("/api/about");
    shell.listTraces();
    if (id === trace) shell.mounting = shell.mount();
    else shell.state.set({ trace: id });
    await shell.mounting;
    return true;
  } catch (error) {
    shell.fail(error);
    return false;
  }
}

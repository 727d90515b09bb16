// Saving what is shown as a file, and copying a link to it.

import { framed } from "./figure_frame.js";
import { csvOf, nameOf, pngOf, save, svgOf } from "./file_export.js";

const LONGEST = 1500; // letters of a text that a link may carry
const NOTHING = "There is nothing to export yet: this view shows no numbers. Choose something to look at first.";

/** The view's picture in its frame, or null where it shows nothing. */
export async function figureOf(shell) {
  const picture = await shell.view?.picture?.();
  if (!picture || !("draw" in picture)) return picture ?? null;
  const { known, trace } = shell;
  const of = known.needs === "trace" ? trace : null;
  const subject = (shell.view.subject?.() ?? []).map((part) => part.replace(/^(layer|head)(?=\d)/, "$1 "));
  const title = [known.title, of && (of.model || of.title), ...subject].filter(Boolean).join(" · ");
  return framed(picture, {
    title,
    text: of ? textOf(of) : (shell.view.caption?.() ?? ""),
    legend: shell.view.legend?.() ?? null,
    root: shell.root,
    palette: shell.palettes[shell.theme.shown],
  });
}

/** What a model read, as far as it is known. @param {Trace} trace */
export function textOf(trace) {
  if (trace.made?.text) return [trace.made.text, trace.made.second].filter(Boolean).join(" / ");
  const [first = []] = Object.values(trace.sides);
  return first.slice(0, 120).join(" ").replace(/ ##/g, "").replace(/[▁Ġ]/g, "");
}

/** Save the view as "svg", "png" or "csv". */
export async function exportView(shell, kind) {
  const { known } = shell;
  const model = known.needs === "trace" ? shell.trace?.model : "";
  const name = `${nameOf([model, ...(shell.view?.subject?.() ?? []), known.name])}.${kind}`;
  try {
    const figure = await figureOf(shell);
    if (!figure) throw new Error(NOTHING);
    if (kind === "csv") save(name, new Blob([csvOf((await shell.view.table?.()) ?? [])], { type: "text/csv" }));
    else if (kind === "svg") save(name, new Blob([svgOf(figure)], { type: "image/svg+xml" }));
    else save(name, await pngOf(figure));
    shell.notice(`Saved ${name}`);
  } catch (error) {
    shell.fail(error);
  }
}

/** A link to what is shown. It says which model read which text, so that it works where the trace does not exist. */
export function linkOf(shell) {
  const made = shell.known.needs === "trace" ? shell.trace?.made : null;
  const short = made && (made.text + (made.second ?? "")).length <= LONGEST;
  return shell.state.link(
    short ? { model: made.model, sentence: made.text, second: made.second, generate: made.generate || null } : {},
  );
}

export async function copyLink(shell) {
  const link = linkOf(shell);
  try {
    await navigator.clipboard.writeText(link);
    shell.notice("Copied: a link to what you see");
  } catch {
    shell.fail(new Error(`The browser did not allow copying. The link is ${link}`));
  }
}

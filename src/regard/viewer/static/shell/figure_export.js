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

/** Save the view as "svg", "png" or "csv"; pictures on white, or with `asShown` in the page's colours. */
export async function exportView(shell, kind, asShown = false) {
  const { known } = shell;
  const model = known.needs === "trace" ? shell.trace?.model : "";
  const look = asShown ? `${shell.theme.shown}-colours` : ""; // a name of its own: it is another picture
  const name = `${nameOf([model, ...(shell.view?.subject?.() ?? []), known.name, look])}.${kind}`;
  try {
    const drawing = async () => {
      const figure = await figureOf(shell);
      if (!figure) throw new Error(NOTHING);
      if (kind === "csv") return new Blob([csvOf((await shell.view.table?.()) ?? [])], { type: "text/csv" });
      return kind === "svg" ? new Blob([svgOf(figure)], { type: "image/svg+xml" }) : pngOf(figure);
    };
    save(name, await (asShown || kind === "csv" ? drawing() : shell.theme.onWhite(drawing)));
    shell.notice(`Saved ${name}`);
  } catch (error) {
    shell.fail(error);
  }
}

/** Keys of the state that each view reads besides the shared ones: a link to one view leaves those of the others out. */
const OWN = {
  heads: ["other", "heads", "pins", "mute", "mass", "shift", "part", "toward", "at"],
  model: ["sort", "pool", "head"],
  neuron: ["head", "query", "at"],
  map: ["head", "query", "pins", "map", "toward"],
  generation: ["head", "heads", "step", "toward"],
};
const SHARED = ["view", "trace", "entry", "call", "level"];

/** The keys of the state that a link to the open view leaves out, as nulls. */
function others(shell) {
  const { name } = shell.known;
  const kept = new Set([...SHARED, ...(OWN[name] ?? [name, "models", "text", "toward", "head", "heads", "mute"])]);
  const leaves = Object.keys(shell.state.get()).filter((key) => !kept.has(key));
  return Object.fromEntries(leaves.map((key) => [key, null]));
}

/** A link to what is shown. It says which model read which text, so that it works where the trace does not exist. */
export function linkOf(shell) {
  const made = shell.known.needs === "trace" ? shell.trace?.made : null;
  const short = made && (made.text + (made.second ?? "")).length <= LONGEST;
  return shell.state.link({
    ...others(shell),
    ...(short ? { model: made.model, sentence: made.text, second: made.second, generate: made.generate || null } : {}),
  });
}

/** Copy the link; `withToken` adds what lets another browser into a server that asks for a token. */
export async function copyLink(shell, withToken = false) {
  let link = linkOf(shell);
  try {
    const { token = null } = shell.page && !shell.source.holds ? await shell.source.get("/api/token") : {};
    if (token && withToken) link = link.replace(/\/#/, `/?token=${encodeURIComponent(token)}#`);
    await navigator.clipboard.writeText(link);
    const who = withToken
      ? "whoever has it can use this server"
      : "it opens only in a browser that has opened this server";
    shell.notice(`Copied: a link to what you see${token ? `. It works while this server runs; ${who}.` : ""}`);
  } catch {
    shell.fail(new Error(`The browser did not allow copying. The link is ${link}`));
  }
}

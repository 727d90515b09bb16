// What a view is given by the shell: the trace, the state of the page, and what it may ask for (types/viewer.d.ts, Context).
import { views } from "../views/index.js";

/** @returns {Context} */
export function viewContext(shell) {
  return {
    source: shell.source,
    about: shell.about,
    trace: /** @type {Trace} */ (shell.trace), // views that need none ask before they use it
    state: shell.state,
    get theme() {
      return shell.theme.shown;
    },
    get level() {
      return shell.level;
    },
    get palette() {
      return shell.palettes[shell.theme.shown];
    },
    headViews: views.filter((view) => view.showsHead),
    announce: shell.announce,
    read: shell.reading.possible ? () => shell.reading.open() : null,
    open: (id) => shell.added(id),
    sample: (task) => shell.sentence.sample(task),
    text: () => shell.sentence.text(),
    fail: (error) => shell.fail(error),
  };
}

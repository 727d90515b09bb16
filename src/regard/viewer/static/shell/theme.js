// Light, dark, or as the system has it.

const KEY = "regard-theme";
/** @typedef {"auto" | "light" | "dark"} Choice */

/** @type {Choice[]} */
const ORDER = ["auto", "light", "dark"];

/** Sets data-theme on `root` and calls `changed` whenever what is shown changes. */
export function makeTheme(root, changed) {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let choice = remembered();
  /** What is shown for the time of an export. @type {"light" | null} */
  let forced = null;
  /** @returns {"light" | "dark"} */
  const shown = () => forced ?? (choice === "auto" ? (system.matches ? "dark" : "light") : choice);
  const apply = () => {
    root.dataset.theme = shown();
    changed();
  };
  system.addEventListener("change", apply);
  root.dataset.theme = shown();
  return {
    get choice() {
      return choice;
    },
    get shown() {
      return shown();
    },
    choose(next) {
      choice = ORDER.find((one) => one === next) ?? "auto";
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // A page from disk or in a sandbox may keep nothing; the choice then lasts as long as the page.
      }
      apply();
    },
    /** Dark on white while `work` draws a figure, whatever the page's colours are. */
    async onWhite(work) {
      forced = "light";
      root.style.setProperty("--paper", "#ffffff");
      apply();
      try {
        return await work();
      } finally {
        forced = null;
        root.style.removeProperty("--paper");
        apply();
      }
    },
    next() {
      this.choose(ORDER[(ORDER.indexOf(choice) + 1) % ORDER.length]);
    },
    close: () => system.removeEventListener("change", apply),
  };
}

/** @returns {Choice} */
function remembered() {
  try {
    const kept = localStorage.getItem(KEY);
    return ORDER.find((one) => one === kept) ?? "auto";
  } catch {
    return "auto";
  }
}

// The tour: a card beside each thing worth knowing, offered on first use. The page stays usable under it.
import { el } from "../draw/dom.js";
import { views } from "../views/index.js";

const KEY = "regard-tour";
/** @typedef {{view?: string, at: string, title: string, text: string}} Step */

/** @type {Step[]} */
const LAST = [
  {
    at: ".badge",
    title: "Is it true?",
    text: "Weights times values must give what the model computed. This says whether they do, and by how much they are off.",
  },
  {
    at: ".tools",
    title: "Take it along",
    text: "Export what you see as SVG, PNG or CSV, or copy a link that restores it. The key ? lists every shortcut.",
  },
];

/** A step for each view that has one, then for the parts of the page. @returns {Step[]} */
function everyStep() {
  return [...views.flatMap(({ name, tour }) => (tour ? [{ view: name, at: ".stage", ...tour }] : [])), ...LAST];
}

/** `shows(view)` says whether a view has something to show; `state` is the page's. */
export function makeTour(root, state, shows) {
  let at = 0;
  /** @type {Element | null} */
  let marked = null;
  /** @type {string | null} */
  let before = null;
  /** @type {Step[]} */
  let steps = [];
  /** @type {HTMLElement | null} */
  let offered = null;
  const card = el("section.tour", { role: "dialog", "aria-label": "Tour", hidden: true, tabIndex: -1 });
  root.append(card);

  card.addEventListener("keydown", (event) => {
    if (event.key === "Escape") end();
    else if (event.key === "ArrowRight") go(at + 1);
    else if (event.key === "ArrowLeft") go(at - 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  /** A line above `node` that asks who comes the first time; it covers nothing and takes no focus. */
  function offer(node) {
    const decline = () => {
      remember();
      offered?.remove();
      root.querySelector(".stage").focus();
    };
    offered = el(
      "section.offer",
      { "aria-label": "Offer of a tour", onkeydown: (event) => event.key === "Escape" && decline() },
      el("span", {}, "New here? A short tour shows what is where."),
      el("button", { type: "button", onclick: start }, "Take the tour"),
      el("button.quiet", { type: "button", onclick: decline }, "No, thanks"),
    );
    node.before(offered);
  }

  function start() {
    offered?.remove();
    steps = everyStep().filter((step) => !step.view || shows(step.view));
    before = state.get().view;
    card.hidden = false;
    go(0);
  }

  function end() {
    card.hidden = true;
    marked?.classList.remove("toured");
    remember();
    state.set({ view: before });
  }

  function go(to) {
    if (to >= steps.length) return end();
    at = Math.max(0, to);
    const { view, title, text } = steps[at];
    if (view) state.set({ view });
    const last = at === steps.length - 1;
    const next = el("button.primary", { type: "button", onclick: () => go(at + 1) }, last ? "Done" : "Next");
    card.replaceChildren(
      el("h2", {}, title),
      el("p", {}, text),
      el(
        "div.buttons",
        {},
        el("span.quietly", {}, `${at + 1} of ${steps.length}`),
        el("button.quiet", { type: "button", hidden: last, onclick: end }, "Skip"),
        el("button", { type: "button", disabled: at === 0, onclick: () => go(at - 1) }, "Back"),
        next,
      ),
    );
    mark();
    next.focus();
  }

  /** The card stands under what it is about; over the corner of a view, which is as large as the page. */
  function mark() {
    marked?.classList.remove("toured");
    const place = root.querySelector(steps[at].at);
    const node = place?.getClientRects().length ? place : root.querySelector(".tools");
    marked = node;
    node.classList.add("toured");
    const [page, box] = [root.getBoundingClientRect(), node.getBoundingClientRect()];
    const large = box.height > page.height / 2;
    const [wide, high] = [card.offsetWidth, card.offsetHeight];
    const left = large ? page.width - wide - 24 : Math.min(box.left - page.left, page.width - wide - 12);
    const top = large ? page.height - high - 24 : box.bottom - page.top + 10;
    card.style.left = `${Math.max(12, left)}px`;
    card.style.top = `${Math.max(12, top)}px`;
  }

  return { offer, start };
}

/** Whether this browser has not seen it. A link to something asks for that, not for a tour. */
export function firstUse() {
  try {
    return !location.hash && !localStorage.getItem(KEY);
  } catch {
    return false; // where nothing can be kept, it would come every time
  }
}

function remember() {
  try {
    localStorage.setItem(KEY, "done");
  } catch {
    // Nothing can be kept here; firstUse() is false there anyway.
  }
}

// The tour: a card beside each thing worth knowing, offered on first use. The page stays usable under it.
import { el } from "../draw/dom.js";

const KEY = "regard-tour";
const STEPS = [
  {
    view: "lookup",
    at: ".stage",
    title: "Attention is a look-up",
    text: "A query meets keys; how well they match becomes weights; the answer is the weighted average of the values. Drag the query and watch.",
  },
  {
    view: "translate",
    at: ".stage",
    title: "Where a translator looks",
    text: "Type a sentence. Point at a word on either side: the words it was made from light up. Below, the search step by step.",
  },
  {
    view: "heads",
    at: ".stage",
    title: "Who looks at whom",
    text: "One colour per head. Point at a token on either side, click to pin it, double-click a head to see it alone.",
  },
  {
    view: "model",
    at: ".stage",
    title: "All heads at once",
    text: "Every head as a small map, sorted by what it does. Click one to look closer.",
  },
  {
    view: "map",
    at: ".stage",
    title: "Read it like a map",
    text: "The whole of one head. Zoom with the wheel or + and −, from the whole context down to single weights.",
  },
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

/** `shows(view)` says whether a view has something to show; `state` is the page's. */
export function makeTour(root, state, shows) {
  let [at, marked, before] = [0, null, null];
  let [steps, offered] = [[], null];
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
      offered.remove();
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
    steps = STEPS.filter((step) => !step.view || shows(step.view));
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

  function go(next) {
    if (next >= steps.length) return end();
    at = Math.max(0, next);
    const { view, title, text } = steps[at];
    if (view) state.set({ view });
    const last = at === steps.length - 1;
    card.replaceChildren(
      el("h2", {}, title),
      el("p", {}, text),
      el(
        "div.buttons",
        {},
        el("span.quietly", {}, `${at + 1} of ${steps.length}`),
        el("button.quiet", { type: "button", onclick: end }, last ? "" : "Skip"),
        el("button", { type: "button", disabled: at === 0, onclick: () => go(at - 1) }, "Back"),
        el("button.primary", { type: "button", onclick: () => go(at + 1) }, last ? "Done" : "Next"),
      ),
    );
    card.querySelector(".quiet").hidden = last;
    mark();
    card.querySelector(".primary").focus();
  }

  /** The card stands under what it is about; over the corner of a view, which is as large as the page. */
  function mark() {
    marked?.classList.remove("toured");
    marked = root.querySelector(steps[at].at);
    if (!marked?.getClientRects().length) marked = root.querySelector(".tools");
    marked.classList.add("toured");
    const [page, box] = [root.getBoundingClientRect(), marked.getBoundingClientRect()];
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

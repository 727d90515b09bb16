// A short message at the bottom of the page, which goes away by itself.
import { el } from "../draw/elements.js";

const SHOWN = 3500; // milliseconds

/** Shows a text; it is announced as well. */
export function makeNotice(root, announce) {
  const box = el("div.notice", { hidden: true, "aria-hidden": "true" });
  root.append(box);
  let waiting = 0;
  const show = (text) => {
    clearTimeout(waiting);
    box.textContent = text;
    box.hidden = false;
    announce(text);
    waiting = setTimeout(() => {
      box.hidden = true;
    }, SHOWN);
  };
  return show;
}

/** A polite live region in `root`; the last thing said wins, so hovering does not pile up. */
export function makeAnnouncer(root) {
  const region = el("div.unseen", { role: "status", "aria-live": "polite" });
  root.append(region);
  let waiting = 0;
  const announce = (text) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      region.textContent = text;
    }, 250);
  };
  return announce;
}

/** `stage` is dimmed meanwhile: what it shows is still the result before. @param {HTMLElement} stage */
export function runStatus(stage) {
  const words = el("span.run-words");
  const seconds = el("span.run-seconds", { "aria-hidden": "true" }); // a screen reader would say every second of them
  const cancel = el("button", { onclick: () => stop() }, "Cancel");
  const line = el("div.run-line", { hidden: true }, el("span", { role: "status" }, words), seconds, cancel);
  stage.before(el("div.run-status", line));
  let [stop, turn, clock] = [() => {}, 0, 0];

  const show = (on) => {
    clearInterval(clock);
    line.hidden = !on;
    stage.classList.toggle("waiting", on);
    stage.setAttribute("aria-busy", String(on));
  };

  return {
    /** A run begins; returns its number, for `end`. @param {string} text @param {() => void} abort */
    begin(text, abort) {
      const start = performance.now();
      const tick = () => {
        seconds.textContent = `${Math.floor((performance.now() - start) / 1000)} s`;
      };
      stop = abort;
      words.textContent = text;
      tick();
      show(true);
      clock = window.setInterval(tick, 1000);
      turn += 1;
      return turn;
    },
    /** A run ended; a later one may have taken its place. @param {number} run */
    end(run) {
      if (run === turn) show(false);
    },
    close: () => clearInterval(clock),
  };
}

// Asks the server now and then what it has: traces that another tab made join the list, and a server that stopped is noticed.

const [SOON, LATER] = [1000, 5000]; // milliseconds between two questions: while traces are being made, and else

/** `changed(about)` when the traces changed, `lost(error)` and `back()` when the server stopped and answers again. */
export function watchServer(source, about, { changed, lost, back }) {
  let [known, gone, waiting] = [stampOf(about), false, 0];
  const ask = async () => {
    clearTimeout(waiting);
    let pause = LATER;
    try {
      if (document.visibilityState === "visible") {
        const now = await source.get("/api/about");
        if (gone) back();
        gone = false;
        if (stampOf(now) !== known) changed(now);
        known = stampOf(now);
        pause = now.coming ? SOON : LATER;
      }
    } catch (error) {
      if (!gone) lost(error);
      gone = true;
    }
    waiting = setTimeout(ask, pause);
  };
  waiting = setTimeout(ask, about.coming ? SOON : LATER);
  window.addEventListener("focus", ask);
  return {
    close() {
      clearTimeout(waiting);
      window.removeEventListener("focus", ask);
    },
  };
}

function stampOf({ traces, coming, models }) {
  return JSON.stringify([traces.map((trace) => trace.id), coming, models.length]);
}

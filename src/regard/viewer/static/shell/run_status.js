// The line over the view while a model runs: what runs, for how many seconds, and a button that cancels it.
import { el } from "../draw/dom.js";

/** `stage` is dimmed meanwhile: what it shows is still the result before. @param {HTMLElement} stage */
export function runStatus(stage) {
  const words = el("span.run-words");
  const seconds = el("span.run-seconds", { "aria-hidden": "true" }); // a screen reader would say every second of them
  const cancel = el("button", { type: "button", onclick: () => stop() }, "Cancel");
  const line = el("div.run-line", { hidden: true }, el("span", { role: "status" }, words), seconds, cancel);
  stage.before(el("div.run-status", {}, line));
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

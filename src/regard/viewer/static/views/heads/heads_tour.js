// What the tour does in the Heads view.
import { callOf } from "../../data/calls.js";
import { sideOf } from "../../data/tokens.js";

const CHOSEN = 4; // words

/** Some words, one after another. @param {TourStage} stage */
export async function chooseWords({ state, trace, pause }) {
  const call = callOf(trace, state.get());
  const { labels, special } = sideOf(trace, call, "query", "token");
  const words = labels.flatMap((label, at) => (special[at] || !/\p{L}{2}/u.test(label) ? [] : [`q${at}`]));
  state.set({ level: null });
  for (let n = 0; n < CHOSEN; n++) {
    const word = words[Math.floor(((n + 1) * words.length) / (CHOSEN + 1))];
    if (word) state.set({ pins: [word] });
    await pause(1100);
  }
}

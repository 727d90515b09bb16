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

// Motion between views: a view grows out of the place that was pressed to open it, such as the small map of a head.

const DURATION = 180; // milliseconds

/** Returns a function that shows the view now on the stage coming in; nothing moves under reduced motion. */
export function makeViewMotion(stage) {
  let origin = "50% 0";
  stage.addEventListener("pointerdown", (event) => {
    const box = stage.getBoundingClientRect();
    origin = `${event.clientX - box.left}px ${event.clientY - box.top}px`;
  });
  return () => {
    if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    stage.style.transformOrigin = origin;
    stage.animate([{ opacity: 0, transform: "scale(0.96)" }, { opacity: 1 }], {
      duration: DURATION,
      easing: "ease-out",
    });
    origin = "50% 0"; // the next one may be opened by its tab
  };
}

// The keys of the Map view.

/** @returns {KeyBinding[]} */
export function mapKeys(view) {
  /** @type {[string, number, number][]} */
  const arrows = [
    ["ArrowLeft", -1, 0],
    ["ArrowRight", 1, 0],
    ["ArrowUp", 0, -1],
    ["ArrowDown", 0, 1],
  ];
  const moves = arrows.flatMap(([key, across, down], at) => [
    { key, shown: "arrows", text: at ? "" : "move, and read the middle", run: () => view.step(across, down, false) },
    {
      key,
      shift: true,
      shown: "arrows",
      text: at ? "" : "move half a window",
      run: () => view.step(across, down, true),
    },
  ]);
  return [
    ...moves,
    { key: "+", text: "zoom in", run: () => view.camera.zoom(1.5) },
    { key: "=", text: "", run: () => view.camera.zoom(1.5) },
    { key: "-", text: "zoom out", run: () => view.camera.zoom(1 / 1.5) },
    { key: "Home", text: "the whole head", run: () => view.camera.showAll() },
    { key: "[", text: "the head before", run: () => view.nextHead(-1) },
    { key: "]", text: "the next head", run: () => view.nextHead(1) },
    { key: ",", text: "the layer before", run: () => view.nextCall(-1) },
    { key: ".", text: "the next layer", run: () => view.nextCall(1) },
    {
      key: "p",
      text: "largest or mean of a cell",
      run: () => view.set({ pool: view.settings.pool === "max" ? "mean" : "max" }),
    },
    { key: "c", text: "two heads in step", run: () => view.compare(!view.settings.other) },
  ];
}

// The keys of the Generation view.

/** `view` is the Generation view. @returns {KeyBinding[]} */
export function generationKeys(view) {
  const to = (step) => view.context.state.set({ step: Math.min(view.written.length - 1, Math.max(0, step)) });
  return [
    { key: "ArrowRight", text: "next token", run: () => to(view.step + 1) },
    { key: "ArrowLeft", text: "previous token", run: () => to(view.step - 1) },
    { key: "Home", text: "first token written", run: () => to(0) },
    { key: "End", text: "last token written", run: () => to(view.written.length - 1) },
    { key: " ", text: "play or pause", run: () => view.toggle() },
    {
      key: "m",
      text: "hide the first token",
      run: () => view.context.state.set({ mute: view.muted ? null : ["first"] }),
    },
    { key: "a", text: "all heads", run: () => view.context.state.set({ heads: null }) },
  ];
}

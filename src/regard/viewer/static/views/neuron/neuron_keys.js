// The keys of the Neuron view.

/** `view` is the Neuron view. @returns {KeyBinding[]} */
export function neuronKeys(view) {
  const set = (patch) => view.context.state.set(patch);
  const move = (by) => {
    const query = Math.min(view.call.queries - 1, Math.max(0, view.query + by));
    set({ query });
    view.reveal(query);
    view.context.announce(`query ${view.querySide.labels[query]}`);
  };
  const turn = (by) => set({ head: (view.head + by + view.call.heads) % view.call.heads });
  const layer = (by) => {
    const call = view.trace.calls[view.trace.calls.indexOf(view.call) + by];
    if (call) set({ call: call.id });
  };
  return [
    { key: "ArrowDown", text: "next query", run: () => move(1) },
    { key: "ArrowUp", text: "previous query", run: () => move(-1) },
    { key: "ArrowRight", text: "read the next key", run: () => view.step(1) },
    { key: "ArrowLeft", text: "read the previous key", run: () => view.step(-1) },
    { key: "ArrowRight", shift: true, text: "its next number", run: () => view.stepNumber(1) },
    { key: "ArrowLeft", shift: true, text: "its previous number", run: () => view.stepNumber(-1) },
    { key: ".", text: "next head", run: () => turn(1) },
    { key: ",", text: "previous head", run: () => turn(-1) },
    { key: "]", text: "next layer", run: () => layer(1) },
    { key: "[", text: "previous layer", run: () => layer(-1) },
  ];
}

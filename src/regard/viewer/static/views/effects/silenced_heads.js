// Heads that are silenced one at a time: asked for a few at a time, so that results and progress come as they are computed.

const AT_ONCE = 32; // heads of one request; the server answers with as many as half a second allows

export class SilencedHeads {
  /** `arrived()` is called when some heads have a result. @param {Context} context @param {() => void} arrived */
  constructor({ source, trace }, target, value, arrived) {
    this.source = source;
    this.path = `/api/traces/${encodeURIComponent(trace.id)}/silenced`;
    this.target = target;
    this.value = value;
    this.arrived = arrived;
    this.running = false;
    this.done = 0; // heads of the present run that have a result
    this.count = 0; // heads of the present run
    this.why = "";
    this.ending = new AbortController();
  }

  /** Sets `change` of each of these {call, head}: the answer's score without the head, less the score with it. */
  async run(heads) {
    if (this.running || this.ending.signal.aborted || !heads.length) return;
    this.running = true;
    [this.done, this.count] = [0, heads.length];
    try {
      while (this.done < heads.length && this.running) {
        const next = heads.slice(this.done, this.done + AT_ONCE);
        const names = next.map(({ call, head }) => `${call}.${head}`).join(",");
        const { values } = await this.source.get(this.path, { ...this.target, heads: names }, this.ending.signal);
        values.forEach((value, at) => {
          next[at].change = value - this.value;
        });
        this.done += values.length;
        this.arrived();
      }
    } catch (error) {
      if (error.name !== "AbortError") this.why = `Heads cannot be silenced: ${error.message}`;
    }
    this.running = false;
    this.arrived();
  }

  close() {
    this.running = false;
    this.ending.abort();
    this.ending = new AbortController();
  }
}

// A button that plays steps one after another, and pauses.

/** `forward()` goes on by one step and returns whether there was one; `pace` is milliseconds a step. */
export class Player {
  constructor(button, pace, forward) {
    this.button = button;
    this.pace = pace;
    this.forward = forward;
    this.timer = 0;
  }

  get playing() {
    return this.timer !== 0;
  }

  toggle() {
    if (this.playing) return this.pause();
    this.button.textContent = "Pause";
    this.timer = setInterval(() => this.forward() || this.pause(), this.pace);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    this.button.textContent = "Play";
  }
}

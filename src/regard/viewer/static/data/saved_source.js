// A widget whose data is saved with the notebook: what it holds is answered without the kernel.
import { keyOf } from "./source.js";

const PATIENCE = 20_000; // milliseconds after which a kernel that does not answer is taken to be gone

/** Answers from `file` what that holds, and asks `kernel` for the rest. */
export class SavedSource {
  /** @param {Source} file @param {Source} kernel */
  constructor(file, kernel) {
    this.file = file;
    this.kernel = kernel;
  }

  get(path, params, signal) {
    return this.first(
      () => this.file.get(path, params),
      () => this.kernel.get(path, params, signal),
      path,
      params,
    );
  }

  array(path, params, signal) {
    return this.first(
      () => this.file.array(path, params),
      () => this.kernel.array(path, params, signal),
      path,
      params,
    );
  }

  post(path, body, signal) {
    return within(this.kernel.post(path, body, signal), path);
  }

  async first(saved, asked, path, params) {
    try {
      return await saved();
    } catch {
      return within(asked(), keyOf(path, params));
    }
  }

  close() {
    this.kernel.close?.();
  }
}

/** A promise, or an error where nothing comes of it for a while. */
function within(promise, what) {
  const words = `the notebook's kernel does not answer (${what.split("?")[0]}): run the cell again to see this`;
  let timer = 0;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(words)), PATIENCE);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

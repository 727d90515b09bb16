// Types of the viewer's JavaScript, by name in every module. The requests of the API are in api.d.ts, from its schema.
declare global {
  /** GET /api/about: what the server has. */
  interface About {
    version: string;
    models: ModelAbout[];
    traces: { id: string; title: string; model: string; tokens: number; calls: number; faithful: boolean | null }[];
    coming: number;
    views: string[];
    opening?: Record<string, any>;
    limits: Record<string, number>;
  }

  interface ModelAbout {
    name: string;
    task: "translate" | "read" | "generate" | "classify" | "caption" | "listen";
    title: string;
    layers: number;
    examples?: string[];
    attends?: boolean;
  }

  /** How far weights times values are from what the model computed. */
  interface Fidelity {
    error?: number | null;
    budget?: number | null;
    kept?: boolean | null;
    word?: string;
    rows?: number;
  }

  /** One call of attention in a trace. */
  interface Call {
    id: string;
    name: string;
    layer: number | null;
    kind: string;
    heads: number;
    queries: number;
    keys: number;
    query_side: string;
    key_side: string;
    steps: number[];
    origin: string;
    grid?: [number, number] | null;
    fidelity: Fidelity;
  }

  interface Trace {
    id: string;
    title: string;
    model: string;
    batch: number;
    prompt: number;
    faithful: boolean | null;
    calls: Call[];
    sides: Record<string, string[]>;
    side_words: Record<string, (number | null)[]>;
    side_special: Record<string, boolean[]>;
    /** The model and the text it was made of, where a model of the server read it. */
    made?: { model: string; text: string; second: string | null; generate: number; read?: number; cut?: number } | null;
  }

  /** What /api/traces/{t}/answers says of one answer: the others, and the contributions of every call. */
  interface Answers {
    position: number;
    positions: number;
    /** "next token", "label" or "similarity". */
    kind: string;
    answer: number;
    minus: number | null;
    value: number;
    answers: { id: number; piece: string; score: number; share: number | null }[];
    calls: { id: string; error: number; budget: number; kept: boolean; peak: number; totals: number[] }[];
    missing: Record<string, string>;
  }

  interface ArrayAnswer {
    data: Float32Array | Uint8Array;
    shape: number[];
    type?: string;
    peaks?: number[];
    /** The share of it that is computed; all, where nothing is said. */
    computed?: number;
    note?: string;
  }

  type QueryParameters = Record<string, string | number | null | undefined>;

  /** Where the page gets its data (data/sources.js). */
  interface Source {
    get(path: string, params?: QueryParameters, signal?: AbortSignal): Promise<any>;
    array(path: string, params?: QueryParameters, signal?: AbortSignal): Promise<ArrayAnswer>;
    post(path: string, body: object | Blob, signal?: AbortSignal): Promise<any>;
    /** Whether a path can be answered; a source without it answers all. */
    holds?(path: string): boolean;
    /** Whether a model can be run for a path and any text; a source without it can run all. */
    runs?(path: string): boolean;
    close?(): void;
  }

  interface Palette {
    theme: string;
    ramp(x: number): string;
    over(x: number): string;
    signed(x: number): string;
    overSigned(x: number): string;
    bytes: Uint8ClampedArray;
    signedBytes: Uint8ClampedArray;
    head(index: number): string;
    overHead(index: number): string;
    headOpacity(index: number): number;
  }

  /** What is looked at, as in the link. */
  type State = Record<string, any>;

  interface StateStore {
    get(): State;
    set(patch: State): void;
    on(listener: (now: State, before: State) => void): () => void;
    link(more?: State): string;
    close(): void;
  }

  type Level = "token" | "word";
  type Pen = CanvasRenderingContext2D;
  type Picture = { width: number; height: number; draw(pen: Pen): void };
  /** What a picture's colours mean: one colour for each entry, or a ramp from one number to another, or both. */
  interface Legend {
    entries?: { label: string; color: string }[];
    from?: string;
    to?: string;
    /** What the ramp means. */
    words?: string;
    signed?: boolean;
    /** What else must be known, such as what is hidden. */
    note?: string;
  }
  type Cell = string | number | null | undefined;

  interface KeyBinding {
    key: string;
    text: string;
    shift?: boolean;
    shown?: string;
    run(event: KeyboardEvent): void;
  }

  /** What a view gets. Theme, level and palette are those of the moment. */
  interface Context {
    source: Source;
    about: About;
    trace: Trace;
    state: StateStore;
    readonly theme: "light" | "dark";
    readonly level: Level;
    readonly palette: Palette;
    /** Views that can show one head. */
    headViews: { name: string; title: string }[];
    announce(text: string): void;
    /** The view has drawn anew: what stands below it is brought up to date. */
    drew(): void;
    /** Look at another trace. */
    pick(trace: string): void;
    /** Look at a trace that the server has just made. */
    open(trace: string): void;
    /** Let the first model for a task run on the text of the box, or on an example where it is empty; null without a model. */
    sample(task: ModelAbout["task"]): (() => void) | null;
    fail(error: Error): void;
  }

  interface MountedView {
    /** The state, the level or the theme changed: draw again. */
    update(state: State): void;
    /** End every request and listener. */
    destroy(): void;
    /** For export, unless there is nothing to show. */
    picture?(): Picture | null | Promise<Picture | null>;
    /** What it says, in one sentence, below the picture; its hint, where it has none. */
    sentence?(): string;
    /** What its colours mean, below the picture and in exports. */
    legend?(): Legend | null;
    /** What it shows in words, for export, where that is no trace. */
    caption?(): string;
    table?(): Cell[][] | Promise<Cell[][]>;
    /** What is shown, for the names of files: ["layer3", "head7"]. */
    subject?(): string[];
    /** What was drawn, as numbers, for tests. */
    drawn?(): unknown;
    keys?: KeyBinding[];
  }

  /** A view as its module describes it; views/index.js lists them. */
  interface View {
    /** The name in links, and of the exported constant. */
    name: string;
    title: string;
    /** The key that opens it, for views after the tenth; else the first letter of its name. */
    key?: string;
    /** One sentence: beside the tabs and in their tooltips. */
    hint: string;
    /** "trace", "nothing", or the task that a model must have. */
    needs: "trace" | "nothing" | ModelAbout["task"];
    /** The sentence shown where no model has that task. */
    without?: string;
    /** The part of a call in the API that the view cannot do without. */
    asks?: string;
    /** The sentence shown where a single file does not hold that part. */
    unheld?: string;
    tokensOnly?: boolean;
    /** It can show one head: other views offer to open it. */
    showsHead?: boolean;
    mount(root: HTMLElement, context: Context): MountedView;
  }

  /** The element that el("button.primary") makes. */
  type ElementOf<Name extends string> = Name extends `${infer Tag}.${string}`
    ? ElementOf<Tag>
    : Name extends keyof HTMLElementTagNameMap
      ? HTMLElementTagNameMap[Name]
      : HTMLElement;

  interface Window {
    regard: object;
  }
}

export {};

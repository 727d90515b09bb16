// The search of the Map view: from one occurrence of a word to the next.

export class MapSearch {
  /** The last search, and the position it led to. @type {{text: string, at: number} | null} */
  last = null;

  /** `view` is the Map view. */
  constructor(view) {
    this.view = view;
  }

  /** Jump to the next key that holds these letters, or to the next query where no key does; Enter again goes on. */
  find(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return;
    const { view } = this;
    const { key, query } = view.panels[0].sides;
    const matches = (labels) => labels.flatMap((label, at) => (label.toLowerCase().includes(wanted) ? [at] : []));
    const [columns, rows] = [matches(key), matches(query)];
    const places = columns.length ? columns : rows;
    if (!places.length) return view.context.announce(`“${text}” is not in this text`);
    const before = this.last;
    const after = before && before.text === wanted ? before.at : -1;
    const at = places.find((place) => place > after) ?? places[0];
    this.last = { text: wanted, at };
    const place = {
      row: rows.includes(at) ? at : (rows[0] ?? 0),
      column: columns.includes(at) ? at : (columns[0] ?? 0),
    };
    view.camera.move({ x: place.column + 0.5, y: place.row + 0.5, scale: Math.max(view.camera.now.scale, 16) });
    view.point(place);
    view.context.announce(
      `${places.indexOf(at) + 1} of ${places.length}: ${(columns.length ? key : query)[at]}, position ${at}`,
    );
  }
}

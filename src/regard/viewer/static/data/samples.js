// Pictures and sounds that ship, for views that would otherwise begin empty.

/** The samples of a kind, "pictures" or "sounds", as files; none where the source has none.
 *
 * @param {Source} source @param {"pictures" | "sounds"} kind
 * @returns {Promise<{name: string, file: Blob}[]>}
 */
export async function samplesOf(source, kind) {
  try {
    const found = (await source.get("/api/samples"))[kind] ?? [];
    return found.map(({ name, type, data }) => {
      const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
      return { name, file: new Blob([bytes], { type }) };
    });
  } catch {
    return []; // a single file has none
  }
}

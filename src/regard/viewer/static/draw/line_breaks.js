// Text broken into lines.

/** Text in lines of about so many letters. */
export function textLines(text, most) {
  const all = [""];
  for (const word of text.split(" ")) {
    const longer = all[all.length - 1] ? `${all[all.length - 1]} ${word}` : word;
    if (longer.length <= most || longer === word) all[all.length - 1] = longer;
    else all.push(word);
  }
  return all;
}

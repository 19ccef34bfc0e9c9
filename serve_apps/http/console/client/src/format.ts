// Numbers, times and texts as a person reads them.
export type Cell = string | number | boolean | null | undefined;

/** Characters that a text may hide or turn itself with: shown by their code point, never as what they do. */
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu;

/** A text without invisible control characters: each becomes ⟦U+202E⟧. Line ends and tabs stay. */
export function visible(text: string): string {
  return text.toWellFormed().replace(HIDDEN, (c) => `⟦U+${c.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟧`);
}

export function cell(value: Cell): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return figure(value);
  return visible(String(value));
}

export function figure(value: number): string {
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : String(Number(value.toPrecision(4)));
}

export function moment(seconds: number | null): string {
  return seconds === null ? "–" : new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19);
}

export function ofNano(at: number | null): string {
  return at === null ? "–" : moment(at * 1e-9);
}

/** Characters of a value in a list of facts. */
const MOST = 300;

/** A JSON value on one line, shortened. */
export function json(value: unknown): string {
  const text = JSON.stringify(value) ?? "–";
  return line(text.length > MOST ? `${text.slice(0, MOST)}… (${text.length.toLocaleString("en")} characters)` : text);
}

/** One line of a text, for a cell of a table. */
export function line(text: string): string {
  return visible(text).replace(/\n/g, "⏎").replace(/\t/g, " ");
}

/** Values by path, with names of files in place of paths; a name that two paths have stays a path. */
export function byFile<T>(of: Record<string, T>): Record<string, T> {
  const name = (path: string) => path.slice(path.lastIndexOf("/") + 1);
  const names = Object.keys(of).map(name);
  return Object.fromEntries(Object.entries(of).map(([path, value]) => [names.filter((one) => one === name(path)).length > 1 ? path : name(path), value]));
}

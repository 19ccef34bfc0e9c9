// What a page that was saved as one file keeps: the URL of its view, and the answers that the view asked for.

export interface Kept {
  /** Path and query of the view. */
  url: string;
  /** When it was saved, UTC. */
  at: string;
  /** Answers by path and query, in base64. */
  answers: Record<string, string>;
}

export const KEPT = "kept";

function read(): Kept | null {
  const text = document.getElementById(KEPT)?.textContent;
  return text ? JSON.parse(text) : null;
}

/** The saved view; null on a console. */
export const kept = read();

const asked = new Map<string, string>();

/** Notes that the page of the shown path asked for this. */
export function noteAsked(path: string): void {
  asked.set(path, location.pathname);
}

/** What the page of the shown path asked for since it was opened. */
export function askedHere(): string[] {
  return [...asked].filter(([, page]) => page === location.pathname).map(([path]) => path);
}

/** A kept answer; null if the file has none. */
export function keptAnswer(path: string): Response | null {
  const body = kept!.answers[path];
  return body === undefined ? null : new Response(Uint8Array.from(atob(body), (byte) => byte.charCodeAt(0)));
}

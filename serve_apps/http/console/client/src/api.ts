// Requests to the server. Everything that it answers is data: views put it into text nodes.
import { signal } from "@preact/signals";
import type { RunChange, TokenHead } from "./answers";

// The address that a run prints ends in `#token=`. The token goes to the tab's storage, so that no link that is sent has it.
const linked = new URLSearchParams(location.hash.slice(1)).get("token");
if (linked) {
  sessionStorage.setItem("token", linked);
  history.replaceState(null, "", location.pathname + location.search);
}

/** Token of this reader; empty on a console that needs none. Kept for this tab alone. */
export const token = signal(sessionStorage.getItem("token") ?? "");
/** Whether the server refused the token. */
export const needsToken = signal(false);

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export function setToken(value: string): void {
  sessionStorage.setItem("token", value);
  token.value = value;
  needsToken.value = false;
}

async function get(path: string, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = token.value ? { Authorization: `Bearer ${token.value}` } : {};
  const response = await fetch(path, { headers, signal });
  if (response.ok) return response;
  if (response.status === 401) needsToken.value = true;
  const answer: { error?: string } = await response.json().catch(() => ({}));
  throw new Refused(response.status, answer.error ?? `the server answered ${response.status}`);
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await get(path, signal)).json();
}

export function runPath(run: string, ...parts: string[]): string {
  return ["/api/runs", ...[run, ...parts].map(encodeURIComponent)].join("/");
}

export interface Tokens {
  head: TokenHead;
  ids: Int32Array;
  logProbs: Float32Array;
  versions: Int32Array;
  trained: Uint8Array;
}

/** Reads a token frame: see `token_frame` at the server. */
export async function getTokens(run: string, sample: string, signal?: AbortSignal): Promise<Tokens> {
  const bytes = await (await get(runPath(run, "tokens", sample), signal)).arrayBuffer();
  const length = new DataView(bytes).getUint32(0, true);
  const head: TokenHead = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
  let at = 4 + length;
  const place = (size: number): number => {
    const begin = at;
    at += Math.ceil((size * head.n) / 8) * 8;
    return begin;
  };
  return {
    head,
    ids: new Int32Array(bytes, place(4), head.n),
    logProbs: new Float32Array(bytes, place(4), head.n),
    versions: new Int32Array(bytes, place(4), head.n),
    trained: new Uint8Array(bytes, place(1), head.n),
  };
}

/** Calls `changed` for each change of a run until it has ended. A stream that breaks is opened again. */
export async function follow(run: string, changed: (change: RunChange) => void, stop: AbortSignal): Promise<void> {
  while (!stop.aborted) {
    try {
      const response = await get(runPath(run, "changes"), stop);
      if (await readEvents(response, changed)) return;
    } catch (error) {
      if (error instanceof Refused && error.status < 500) return;
    }
    await new Promise((resolve) => setTimeout(resolve, 3000));
  }
}

/** Reads server-sent events by `fetch`: an EventSource cannot send a token. Returns whether the run has ended. */
async function readEvents(response: Response, changed: (change: RunChange) => void): Promise<boolean> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return false;
    text += value;
    const events = text.split("\n\n");
    text = events.pop() ?? "";
    for (const event of events) {
      const [name, data] = event.split("\n").map((line) => line.slice(line.indexOf(": ") + 2));
      if (name === "end") return true;
      if (name === "change") changed(JSON.parse(data));
    }
  }
}

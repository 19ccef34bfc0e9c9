// Requests to the server. Everything that it answers is data: views put it into text nodes.
import { signal } from "@preact/signals";
import type { RunChange, TimelineHead, TokenHead } from "./answers";
import { kept, keptAnswer, noteAsked } from "./kept";

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

/** Number of requests whose answers are not there yet, without those that follow a run. */
export let pending = 0;

export async function get(path: string, signal?: AbortSignal): Promise<Response> {
  const counts = !path.endsWith("/changes");
  if (counts) pending += 1;
  try {
    return await answerOf(path, signal);
  } finally {
    if (counts) pending -= 1;
  }
}

async function answerOf(path: string, signal?: AbortSignal): Promise<Response> {
  if (kept) {
    const answer = keptAnswer(path);
    if (answer) return answer;
    throw new Refused(404, `this file has the view ${kept.url} alone: open the run in a console for the others`);
  }
  const headers: Record<string, string> = token.value ? { Authorization: `Bearer ${token.value}` } : {};
  const response = await fetch(path, { headers, signal });
  if (response.ok) {
    if (path.startsWith("/api/") && !path.endsWith("/changes")) noteAsked(path);
    return response;
  }
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
  /** A teacher's log-probs [nats]; null unless the sample was graded with one. */
  teacher: Float32Array | null;
}

const ARRAYS = { int32: Int32Array, float32: Float32Array, float64: Float64Array, uint8: Uint8Array, uint16: Uint16Array };
type Arrays = Record<string, Int32Array | Float32Array | Float64Array | Uint8Array | Uint16Array>;

/** Reads a frame: see `framed` at the server. `shape` gives type and length of each array, by the head. */
async function getFrame<Head>(path: string, shape: (head: Head) => [string, [string, number]][], signal?: AbortSignal): Promise<{ head: Head; arrays: Arrays }> {
  const bytes = await (await get(path, signal)).arrayBuffer();
  const length = new DataView(bytes).getUint32(0, true);
  const head: Head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
  const arrays: Arrays = {};
  let at = 4 + length;
  for (const [name, [kind, count]] of shape(head)) {
    const array = new ARRAYS[kind as keyof typeof ARRAYS](bytes, at, count);
    arrays[name] = array;
    at += Math.ceil(array.byteLength / 8) * 8;
  }
  return { head, arrays };
}

export async function getTokens(run: string, sample: string, signal?: AbortSignal): Promise<Tokens> {
  const shape = (head: TokenHead) => Object.entries(head.arrays).map(([name, kind]): [string, [string, number]] => [name, [kind, head.n]]);
  const { head, arrays } = await getFrame(runPath(run, "tokens", sample), shape, signal);
  const { tokens, log_probs, versions, trained, teacher } = arrays;
  return {
    head,
    ids: tokens as Int32Array,
    logProbs: log_probs as Float32Array,
    versions: versions as Int32Array,
    trained: trained as Uint8Array,
    teacher: (teacher as Float32Array | undefined) ?? null,
  };
}

export interface Frame {
  head: TimelineHead;
  bar_lane: Uint16Array;
  bar_track: Uint16Array;
  bar_work: Uint8Array;
  bar_start: Float64Array;
  bar_end: Float64Array;
  bar_version: Int32Array;
  bar_step: Int32Array;
  cell_lane: Uint16Array;
  cell_at: Uint16Array;
  cell_work: Uint8Array;
  cell_mean: Float32Array;
}

export async function getTimeline(run: string, query: URLSearchParams, signal?: AbortSignal): Promise<Frame> {
  const shape = (head: TimelineHead) => Object.entries(head.arrays) as [string, [string, number]][];
  const { head, arrays } = await getFrame(`${runPath(run, "timeline")}?${query}`, shape, signal);
  return { head, ...arrays } as unknown as Frame;
}

/** Saves an answer as a file. A link cannot: it sends no token. */
export async function save(path: string, name: string): Promise<void> {
  download(await (await get(path)).blob(), name);
}

/** Gives the reader a file. */
export function download(file: Blob, name: string): void {
  const url = URL.createObjectURL(file);
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Calls `changed` for each change of a run until it has ended. A stream that breaks is opened again. */
export async function follow(run: string, changed: (change: RunChange) => void, stop: AbortSignal): Promise<void> {
  while (!kept && !stop.aborted) {
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

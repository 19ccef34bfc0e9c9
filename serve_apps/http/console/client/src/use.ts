// Hooks: data of a URL, the state of a run.
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { follow, token } from "./api";
import type { RunChange } from "./answers";

/** State of the run that is shown; null until it is known. */
export const change = signal<RunChange | null>(null);
const grown = signal(0);

export interface Loaded<T> {
  value: T | null;
  error: string;
  loading: boolean;
}

/** Loads a value by its key, and again when the key changes. The value before stays until the new one is there. */
export function useLoaded<T>(key: string, load: (stop: AbortSignal) => Promise<T>): Loaded<T> {
  const [state, setState] = useState<Loaded<T>>({ value: null, error: "", loading: true });
  const credentials = token.value;
  useEffect(() => {
    const stop = new AbortController();
    setState((before) => ({ ...before, loading: true }));
    load(stop.signal).then(
      (value) => stop.signal.aborted || setState({ value, error: "", loading: false }),
      (error: Error) => stop.signal.aborted || setState({ value: null, error: error.message, loading: false }),
    );
    return () => stop.abort();
  }, [key, credentials]);
  return state;
}

/** Follows a run while a view of it is shown. */
export function useFollowed(run: string | undefined): void {
  const credentials = token.value;
  useEffect(() => {
    change.value = null;
    if (!run) return;
    const stop = new AbortController();
    const changed = (next: RunChange) => {
      if (change.value?.position && next.position !== change.value.position) grown.value += 1;
      change.value = next;
    };
    void follow(run, changed, stop.signal);
    return () => stop.abort();
  }, [run, credentials]);
}

/** Number of times that the shown run's tables grew since it was opened: part of the key of what they answer. */
export function growth(): number {
  return grown.value;
}

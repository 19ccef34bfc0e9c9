// The runs whose metrics are drawn in one picture: chosen by the URL, each with its colour.
import { useMemo } from "preact/hooks";
import type { Metrics, RunList } from "./answers";
import { getJson, runPath } from "./api";
import { visible } from "./format";
import { to } from "./links";
import { AXES, type Axis, MOST_RUNS } from "./overlay";
import { growth, useLoaded } from "./use";

/** What the URL asks for: the x axis, and the further runs. */
export interface Wish {
  by: Axis;
  with: string[];
  /** Further runs beyond the limit, which are not drawn. */
  beyond: string[];
}

/** A further run, with the name of its colour in the style sheet. */
export interface Further {
  name: string;
  metrics: Metrics;
  colour: string;
}

export function wishOf(url: string, run: string): Wish {
  const words = new URL(url, "http://localhost").searchParams;
  const by = words.get("by") ?? "";
  const names = [...new Set(words.getAll("with"))].filter((name) => name && name !== run);
  return { by: by in AXES ? (by as Axis) : "steps", with: names.slice(0, MOST_RUNS - 1), beyond: names.slice(MOST_RUNS - 1) };
}

const colourOf = (index: number) => `run-${index + 1}`;

/** The metrics of further runs, and why some are not there. They are read again when the page's own run has grown. */
export function useFurther(names: string[]): { there: Further[]; failed: Record<string, string> } {
  const key = JSON.stringify(names);
  const loaded = useLoaded(`metrics of ${key} ${growth()}`, async (stop) => {
    const read = await Promise.allSettled(names.map((name) => getJson<Metrics>(runPath(name, "metrics"), stop)));
    return read.map((one, index) => ({ name: names[index], one }));
  });
  return useMemo(() => {
    const there: Further[] = [];
    const failed: Record<string, string> = {};
    for (const { name, one } of loaded.value ?? []) {
      const index = names.indexOf(name);
      if (index < 0) continue;
      if (one.status === "fulfilled") there.push({ name, metrics: one.value, colour: colourOf(index) });
      else failed[name] = one.reason instanceof Error ? one.reason.message : String(one.reason);
    }
    return { there, failed };
  }, [loaded.value, key]);
}

interface Chosen {
  run: string;
  wish: Wish;
  failed: Record<string, string>;
  change: (next: Wish) => void;
}

/** The drawn runs with their colours, and a list to choose further ones from. */
export function Runs({ run, wish, failed, change }: Chosen) {
  const list = useLoaded("runs", (stop) => getJson<RunList>("/api/runs", stop));
  const served = list.value?.runs.map((one) => one.run) ?? [];
  const others = served.filter((name) => name !== run && !wish.with.includes(name));
  const full = wish.with.length >= MOST_RUNS - 1;
  const without = (left: string) => change({ ...wish, with: wish.with.filter((name) => name !== left) });
  return (
    <>
      <p class="tools chosen">
        {wish.with.length > 0 && <span><span class="key" /> {visible(run)}</span>}
        {wish.with.map((name, index) => (
          <span key={name}>
            <span class={`key ${colourOf(index)}`} /> <a href={to(name, "metrics")}>{visible(name)}</a>{" "}
            <button aria-label={`leave out ${visible(name)}`} onClick={() => without(name)}>leave out</button>
          </span>
        ))}
        {others.length > 0 && !full && (
          <label>
            with{" "}
            <select value="" aria-label="draw a further run" onChange={(event) => change({ ...wish, with: [...wish.with, event.currentTarget.value] })}>
              <option value="">another run</option>
              {others.map((name) => <option key={name} value={name}>{visible(name)}</option>)}
            </select>
          </label>
        )}
        {others.length > 0 && full && <span class="quiet">At most {MOST_RUNS} runs are drawn: leave one out to choose another.</span>}
        {list.error && <span class="error">{visible(list.error)}</span>}
      </p>
      {wish.beyond.length > 0 && (
        <p class="error" role="alert">
          The address names {wish.with.length + wish.beyond.length + 1} runs, and at most {MOST_RUNS} are drawn. Not drawn: {visible(wish.beyond.join(", "))}.
        </p>
      )}
      {Object.entries(failed).map(([name, why]) => <p key={name} class="error" role="alert">{visible(name)} is not drawn: {visible(why)}</p>)}
    </>
  );
}

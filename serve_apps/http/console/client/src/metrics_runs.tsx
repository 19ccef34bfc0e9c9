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
  /** Ends of the window on the axis, as in the URL; empty for none. */
  from: string;
  to: string;
}

/** How a further run is drawn. */
export interface Look {
  /** Name of its colour in the style sheet. */
  colour: string;
  dash: number[];
  /** What a screen reader hears of it. */
  title: string;
}

/** By the index of a further run. */
const LOOKS: Look[] = [
  { colour: "run-1", dash: [10, 4], title: "long dashes" },
  { colour: "run-2", dash: [4, 3], title: "short dashes" },
  { colour: "run-3", dash: [10, 3, 2, 3], title: "dashes with a dot" },
  { colour: "run-4", dash: [10, 3, 2, 3, 2, 3], title: "dashes with two dots" },
];

/** A further run. */
export interface Further {
  name: string;
  metrics: Metrics;
  look: Look;
}

export function wishOf(url: string, run: string): Wish {
  const words = new URL(url, "http://localhost").searchParams;
  const by = words.get("by") ?? "";
  const names = [...new Set(words.getAll("with"))].filter((name) => name && name !== run);
  return {
    by: by in AXES ? (by as Axis) : "steps",
    with: names.slice(0, MOST_RUNS - 1),
    beyond: names.slice(MOST_RUNS - 1),
    from: words.get("from") ?? "",
    to: words.get("to") ?? "",
  };
}

/** The request for the metrics of a run. */
export function requestOf(run: string, { by, from, to }: Wish): string {
  const words = new URLSearchParams({ by, ...(from && { from }), ...(to && { to }) });
  return `${runPath(run, "metrics")}?${words}`;
}

/** A line of a run: runs differ by their dashes, not by their colours alone. */
export function LineKey({ look }: { look?: Look }) {
  return (
    <svg class={`line-key ${look?.colour ?? ""}`} width="34" height="8" role="img" aria-label={look?.title ?? "solid line"}>
      <line x1="0" x2="34" y1="4" y2="4" stroke-dasharray={look?.dash.join(" ")} />
    </svg>
  );
}

/** The metrics of further runs, and why some are not there. They are read again when the page's own run has grown. */
export function useFurther(wish: Wish): { there: Further[]; failed: Record<string, string> } {
  const names = wish.with;
  const key = JSON.stringify([names, wish.by, wish.from, wish.to]);
  const loaded = useLoaded(`metrics of ${key} ${growth()}`, async (stop) => {
    const read = await Promise.allSettled(names.map((name) => getJson<Metrics>(requestOf(name, wish), stop)));
    return read.map((one, index) => ({ name: names[index], one }));
  });
  return useMemo(() => {
    const there: Further[] = [];
    const failed: Record<string, string> = {};
    for (const { name, one } of loaded.value ?? []) {
      const index = names.indexOf(name);
      if (index < 0) continue;
      if (one.status === "fulfilled") there.push({ name, metrics: one.value, look: LOOKS[index] });
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
        {wish.with.length > 0 && <span><LineKey /> {visible(run)}</span>}
        {wish.with.map((name, index) => (
          <span key={name}>
            <LineKey look={LOOKS[index]} /> <a href={to(name, "metrics")}>{visible(name)}</a>{" "}
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

// Samples: facets beside a list of any length.
import { useLocation } from "preact-iso";
import { useEffect, useRef, useState } from "preact/hooks";
import { getJson, runPath } from "../api";
import type { Facets, SamplePage } from "../answers";
import { FacetList } from "../facets";
import { type Cell, cell, line, visible } from "../format";
import { to } from "../links";
import { Loading, Source, Waits } from "../parts";
import { growth, useLoaded } from "../use";
import { VirtualRows } from "../virtual";
import type { Shown } from "./index";

const ROW = 26;
const PAGE = 200;
/** Columns of the list: name at the server, heading, whether one can sort by it. */
const COLUMNS: [string, string, boolean][] = [
  ["sample", "sample", false],
  ["step", "step", true],
  ["reward", "reward", true],
  ["normalised_reward", "normalised", true],
  ["tokens", "tokens", true],
  ["staleness", "staleness", true],
  ["seconds", "seconds", true],
  ["stop_reason", "stop", false],
  ["verdict", "verdict", false],
  ["prompt", "prompt", false],
  ["text", "response", false],
];

interface Wish {
  filters: string[];
  text: string;
  where: string;
  order: string;
}

function wishOf(url: string): Wish {
  const words = new URL(url, "http://localhost").searchParams;
  const word = (name: string) => words.get(name) ?? "";
  return { filters: words.getAll("filter"), text: word("text"), where: word("where"), order: word("order") };
}

function urlOf(run: string, { filters, text, where, order }: Wish): string {
  return to(run, "samples", "", { filter: filters, text, where, order });
}

function requestOf(run: string, kind: string, wish: Wish, more: Record<string, string> = {}): string {
  const words = new URLSearchParams(more);
  for (const filter of wish.filters) words.append("filter", filter);
  for (const name of ["text", "where"] as const) if (wish[name]) words.set(name, wish[name]);
  if (kind === "samples" && wish.order) words.set("order", wish.order);
  return `${runPath(run, kind)}?${words}`;
}

interface Rows {
  columns: Record<string, Cell[]>;
  count: number;
  next: string | null;
  source: SamplePage["source"] | null;
  error: string;
  loading: boolean;
}

const NO_ROWS: Rows = { columns: {}, count: 0, next: "", source: null, error: "", loading: true };

/** Rows of the pages that were read so far, and a function that reads the next page. */
function useRows(run: string, wish: Wish, key: string): [Rows, () => void] {
  const [rows, setRows] = useState<Rows>(NO_ROWS);
  const reading = useRef<AbortController | null>(null);
  const read = (before: Rows, stop: AbortController) => {
    reading.current = stop;
    const url = requestOf(run, "samples", wish, { limit: String(PAGE), ...(before.next ? { cursor: before.next } : {}) });
    getJson<SamplePage>(url, stop.signal).then(
      (page) => stop.signal.aborted || setRows(joined(before, page)),
      (error: Error) => stop.signal.aborted || setRows({ ...before, error: error.message, loading: false }),
    ).finally(() => reading.current === stop && (reading.current = null));
  };
  useEffect(() => {
    const stop = new AbortController();
    read(NO_ROWS, stop);
    return () => (reading.current ?? stop).abort();
  }, [key]);
  return [rows, () => rows.next && !reading.current && read(rows, new AbortController())];
}

function joined(before: Rows, page: SamplePage): Rows {
  const columns: Record<string, Cell[]> = {};
  for (const [name, values] of Object.entries(page.columns)) columns[name] = (before.columns[name] ?? []).concat(values);
  const count = columns.sample.length;
  return { columns, count, next: page.next, source: before.source ?? page.source, error: "", loading: false };
}

function Heads({ order, sort }: { order: string; sort: (order: string) => void }) {
  return (
    <div class="sample-row heads">
      {COLUMNS.map(([name, title, sorts]) => {
        const mark = order === name ? " ↑" : order === `-${name}` ? " ↓" : "";
        if (!sorts) return <span key={name} class={`c-${name}`}>{title}</span>;
        const next = order === `-${name}` ? name : `-${name}`;
        return <button key={name} class={`c-${name}`} onClick={() => sort(next)} aria-label={`sort by ${title}`}>{title + mark}</button>;
      })}
    </div>
  );
}

function Row({ run, columns, at }: { run: string; columns: Rows["columns"]; at: number }) {
  const id = String(columns.sample[at]);
  return (
    <div class="sample-row">
      {COLUMNS.map(([name]) => {
        const value = columns[name][at];
        if (name === "sample") return <a key={name} class={`c-${name}`} href={to(run, "rollouts", id)}>{visible(id)}</a>;
        return <span key={name} class={`c-${name}`}>{typeof value === "string" ? line(value) : cell(value)}</span>;
      })}
    </div>
  );
}

function Search({ wish, change }: { wish: Wish; change: (wish: Wish) => void }) {
  const send = (event: SubmitEvent) => {
    event.preventDefault();
    const words = new FormData(event.target as HTMLFormElement);
    change({ ...wish, text: String(words.get("text")), where: String(words.get("where")) });
  };
  return (
    <form class="tools" onSubmit={send} key={`${wish.text} ${wish.where}`}>
      <label>text <input name="text" defaultValue={wish.text} placeholder="in prompt or response" /></label>
      <label class="wide">SQL <input name="where" defaultValue={wish.where} placeholder="reward > 0.5 AND tokens < 100" spellcheck={false} /></label>
      <button>search</button>
    </form>
  );
}

/** The growth of the tables at which the rows were read, and the number of samples then. */
interface Held {
  key: string;
  growth: number;
  total: number | null;
}

/** Keeps the rows of a list while its run grows: rows are read again for another wish, or when the reader asks for it. */
function useHeld(key: string, total: number | null): [Held, () => void] {
  const [, redraw] = useState(0);
  const held = useRef<Held>({ key, growth: growth(), total: null });
  if (held.current.key !== key) held.current = { key, growth: growth(), total: null };
  held.current.total ??= total;
  const renew = () => {
    held.current = { key, growth: growth(), total: null };
    redraw((times) => times + 1);
  };
  return [held.current, renew];
}

function Renew({ held, total, renew }: { held: Held; total: number | null; renew: () => void }) {
  if (held.growth === growth()) return null;
  const more = total === null || held.total === null ? 0 : total - held.total;
  return <button onClick={renew}>{more > 0 ? `${more.toLocaleString("en")} new: show` : "rows may have changed: show"}</button>;
}

export function Samples({ run = "" }: Shown) {
  const { url, route } = useLocation();
  const wish = wishOf(url);
  const counted = JSON.stringify([run, wish.filters, wish.text, wish.where, growth()]);
  const facets = useLoaded(`facets ${counted}`, async (stop) => ({
    of: counted,
    ...(await getJson<Facets>(requestOf(run, "facets", wish), stop)),
  }));
  const total = facets.value?.of === counted ? facets.value.total : null;
  const [held, renew] = useHeld(JSON.stringify([run, wish]), total);
  const key = JSON.stringify([held.key, held.growth]);
  const [rows, more] = useRows(run, wish, key);
  const change = (next: Wish) => route(urlOf(run, next));
  return (
    <>
      <h1>
        Samples <span class="quiet">{facets.value ? facets.value.total.toLocaleString("en") : "…"}</span>{" "}
        <span class="renew" role="status"><Renew held={held} total={total} renew={renew} /></span>
      </h1>
      <Search wish={wish} change={change} />
      <div class="samples">
        <aside aria-label="filters">
          <Loading of={facets}>
            {(value) => <FacetList facets={value.facets} filters={wish.filters} change={(filters) => change({ ...wish, filters })} />}
          </Loading>
        </aside>
        <section aria-label="samples">
          {rows.error && <p class="error" role="alert">{visible(rows.error)}</p>}
          {rows.loading && rows.count === 0 && facets.value && <Waits />}
          <VirtualRows
            key={key}
            count={rows.count}
            height={ROW}
            label="samples"
            onEnd={more}
            head={<Heads order={wish.order} sort={(order) => change({ ...wish, order })} />}
            row={(at) => <Row run={run} columns={rows.columns} at={at} />}
          />
          {rows.source && <Source source={rows.source} />}
        </section>
      </div>
    </>
  );
}

// The rows of any SELECT over a run's tables and detectors.
import { useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { getJson, runPath } from "../api";
import type { QueryPage } from "../answers";
import { type Cell, cell, visible } from "../format";
import { to } from "../links";
import { type Column, Loading, Source, Table } from "../parts";
import { useLoaded } from "../use";
import type { Shown } from "./index";

const EXAMPLE = "SELECT step, reward_mean, tokens, seconds FROM steps ORDER BY step";

/** A value; ids of samples and groups, alone or in a list, are links to their pages. */
function Value({ run, name, value }: { run: string; name: string; value: Cell }) {
  if (typeof value === "string" && (name === "sample" || name === "group_id"))
    return <a href={to(run, name === "sample" ? "rollouts" : "groups", value)}>{visible(value)}</a>;
  if (typeof value === "string" && name === "samples" && value.startsWith("["))
    return <span class="spread">{listed(value).map((id) => <a key={id} href={to(run, "rollouts", id)}>{visible(id)}</a>)}</span>;
  return <span class={typeof value === "string" ? "wraps" : ""}>{cell(value)}</span>;
}

function listed(text: string): string[] {
  try {
    return (JSON.parse(text) as unknown[]).map(String);
  } catch {
    return []; // a list that was shortened
  }
}

function Rows({ run, page }: { run: string; page: QueryPage }) {
  const rows: Cell[][] = (page.columns[0] ?? []).map((_, row) => page.columns.map((column) => column[row] as Cell));
  return (
    <>
      <p role="status">{page.is_whole ? "" : "the first "}{rows.length.toLocaleString("en")} row{rows.length === 1 ? "" : "s"}</p>
      <Table
        rows={rows}
        label="rows of the query"
        columns={page.names.map((name, at): Column<Cell[]> => ({ name: visible(name), of: (row) => <Value run={run} name={name} value={row[at] ?? null} /> }))}
      />
      <Source source={page.source} />
    </>
  );
}

export function Query({ run = "" }: Shown) {
  const { query, route } = useLocation();
  const [times, setTimes] = useState(0);
  const sql = query.sql || EXAMPLE;
  const page = useLoaded(`query ${run} ${sql} ${times}`, (stop) =>
    getJson<QueryPage>(`${runPath(run, "query")}?${new URLSearchParams({ sql })}`, stop));
  const ask = (event: SubmitEvent) => {
    event.preventDefault();
    setTimes(times + 1);
    route(to(run, "query", "", { sql: String(new FormData(event.target as HTMLFormElement).get("sql") ?? "").trim() }));
  };
  return (
    <>
      <h1>Query</h1>
      <form class="query" onSubmit={ask}>
        <label>
          one SELECT over the tables and detectors of <code>slime-events query --tables</code>
          <textarea key={sql} name="sql" rows={Math.min(12, sql.split("\n").length + 1)} spellcheck={false}>{sql}</textarea>
        </label>
        <button>run</button>
      </form>
      <Loading of={page}>{(rows) => <Rows run={run} page={rows} />}</Loading>
    </>
  );
}

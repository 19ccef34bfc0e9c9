// The list of runs.
import { getJson } from "../api";
import type { ListedRun, RunList } from "../answers";
import { cell, moment, visible } from "../format";
import { to } from "../links";
import { type Column, Copied, Loading, Table } from "../parts";
import { useLoaded } from "../use";

const COLUMNS: Column<ListedRun>[] = [
  { name: "run", of: (row) => <a href={to(row.run, "metrics")}>{visible(row.run)}</a> },
  { name: "status", of: (row) => <span class={`status ${row.status ?? "unreadable"}`}>{row.status ?? "unreadable"}</span> },
  { name: "steps", number: true, of: (row) => cell(row.steps) },
  { name: "of", number: true, of: (row) => cell(row.target) },
  { name: "last event, UTC", of: (row) => moment(row.at) },
  { name: "reason", of: (row) => <span class="quiet">{visible(row.reason)}</span> },
];

export function Runs() {
  const list = useLoaded("runs", (stop) => getJson<RunList>("/api/runs", stop));
  return (
    <Loading of={list}>
      {(value) => (
        <>
          <h1>Runs <span class="quiet">in {visible(value.where)}</span></h1>
          {value.runs.length > 1 && <p><a href="/compare">compare two runs</a></p>}
          {value.runs.length ? <Table rows={value.runs} columns={COLUMNS} label="runs" /> : <p>There are no runs yet.</p>}
          <details class="source">
            <summary>command</summary>
            <Copied title="command" text={value.command} />
          </details>
        </>
      )}
    </Loading>
  );
}

// Parts that several views use.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { AnswerSource } from "./answers";
import { type Cell, cell, visible } from "./format";
import { type Loaded, change } from "./use";

/** The SQL and the command that give what a view shows. */
export function Source({ source, title = "SQL and command" }: { source: AnswerSource; title?: string }) {
  return (
    <details class="source">
      <summary>
        {title} <span class="quiet">log position {source.position.toLocaleString("en")}</span>
      </summary>
      <Copied title="SQL" text={source.sql} />
      <Copied title="command" text={source.command} />
    </details>
  );
}

export function Copied({ title, text }: { title: string; text: string }) {
  const [done, setDone] = useState(false);
  const copy = () => navigator.clipboard.writeText(text).then(() => setDone(true));
  return (
    <div class="copied">
      <span class="quiet">{title}</span>
      <button onClick={copy}>{done ? "copied" : "copy"}</button>
      <pre tabIndex={0}>{visible(text)}</pre>
    </div>
  );
}

/** What a view shows while it loads, and if that failed. Its place is kept, so that nothing moves. */
export function Loading<T>({ of, children }: { of: Loaded<T>; children: (value: T) => ComponentChildren }) {
  if (of.error) return <p class="error" role="alert">{visible(of.error)}</p>;
  if (of.value === null) return <Waits />;
  return <>{children(of.value)}</>;
}

/** Says what a view waits for, and after a second for how long. */
export function Waits() {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    const begun = Date.now();
    const timer = setInterval(() => setSeconds(Math.round((Date.now() - begun) / 1000)), 1000);
    return () => clearInterval(timer);
  }, []);
  const state = change.value;
  const computes = seconds > 0 && state?.position === 0;
  return (
    <p class="quiet waits">
      <span role="status">
        {computes
          ? `computing the tables of ${state.end.toLocaleString("en")} events: the first page of a run waits for them, later pages take milliseconds`
          : "loading"}
      </span>
      {seconds > 0 ? ` … ${seconds} s` : " …"}
    </p>
  );
}

/** Names and values. steady: in columns of one width, so that none moves when another changes. */
export function Facts({ of, steady }: { of: [string, ComponentChildren][]; steady?: boolean }) {
  return (
    <dl class={steady ? "facts steady" : "facts"}>
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{visible(name)}</dt>
          <dd>{typeof value === "number" || value === null || value === undefined ? cell(value as Cell) : value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Characters of a text that are shown at first: a browser needs many seconds for a word of a million. */
const FIRST = 20_000;

/** A text as it is; a long one at first from its beginning, and on request ten times as much. */
export function Text({ text, label }: { text: string; label: string }) {
  const [most, setMost] = useState(FIRST);
  const left = text.length - most;
  return (
    <>
      <pre class="text" tabIndex={0} aria-label={label} dir="ltr">
        {text ? visible(text.slice(0, most)) : <span class="quiet">empty</span>}
      </pre>
      {left > 0 && (
        <button onClick={() => setMost(most * 10)}>
          {left.toLocaleString("en")} more characters: show {Math.min(left, most * 9).toLocaleString("en")}
        </button>
      )}
    </>
  );
}

export interface Column<T> {
  name: string;
  number?: boolean;
  title?: string;
  of: (row: T) => ComponentChildren;
}

/** Rows of a table that are shown at first: a browser needs a minute for ten thousand. */
const FIRST_ROWS = 300;

/** A table; a long one at first with its beginning, and on request ten times as much. */
export function Table<T>({ rows, columns, label }: { rows: T[]; columns: Column<T>[]; label: string }) {
  const [most, setMost] = useState(FIRST_ROWS);
  const left = rows.length - most;
  return (
    <div class="scrolls">
      <table aria-label={label}>
        <thead>
          <tr>{columns.map((column) => <th key={column.name} scope="col" class={column.number ? "number" : ""} title={column.title}>{column.name}</th>)}</tr>
        </thead>
        <tbody>
          {rows.slice(0, most).map((row, at) => (
            <tr key={at}>{columns.map((column) => <td key={column.name} class={column.number ? "number" : ""}>{column.of(row)}</td>)}</tr>
          ))}
        </tbody>
      </table>
      {left > 0 && (
        <button onClick={() => setMost(most * 10)}>
          {left.toLocaleString("en")} more rows: show {Math.min(left, most * 9).toLocaleString("en")}
        </button>
      )}
    </div>
  );
}

// The state of a run: who does what, who waits for what, and the alarms.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { getJson, runPath } from "../api";
import type { Activity, Alarms, Checked, NowPage } from "../answers";
import { decisionColumns } from "../decisions";
import { cell, figure, ofNano, visible } from "../format";
import { kept } from "../kept";
import { to } from "../links";
import { type Column, Copied, Facts, Loading, Source, Table } from "../parts";
import { growth, useLoaded } from "../use";
import type { Shown } from "./index";

const LOOK_MS = 30_000;

/** A duration in words: `12.1 s`, `3 min 20 s`. */
function lasting(nanoseconds: number): string {
  const seconds = Math.max(0, nanoseconds * 1e-9);
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Nanoseconds since this page was answered, while its run is on: a wait gets longer without any event. */
function useAge(page: NowPage): number {
  const [age, setAge] = useState(0);
  useEffect(() => {
    setAge(0);
    if (page.status !== "running" || kept) return;
    const begun = performance.now();
    const timer = setInterval(() => setAge((performance.now() - begun) * 1e6), 1000);
    return () => clearInterval(timer);
  }, [page]);
  return age;
}

/** Number of looks for alarms so far, one in LOOK_MS: in a run that is on, a wait gets longer without any event. */
function useLooks(isOn: boolean): number {
  const [looks, setLooks] = useState(0);
  useEffect(() => {
    if (!isOn) return;
    const timer = setInterval(() => setLooks((before) => before + 1), LOOK_MS);
    return () => clearInterval(timer);
  }, [isOn]);
  return looks;
}

function activityColumns(run: string, now: number): Column<Activity>[] {
  return [
    { name: "who", of: (row) => visible(row.who) },
    { name: "does", of: (row) => <span class={row.waits ? "quiet" : ""}>{visible(row.does)}</span> },
    { name: "since, UTC", of: (row) => ofNano(row.since) },
    { name: "for", number: true, of: (row) => (row.since === null ? "–" : lasting(now - row.since)) },
    { name: "deadline, UTC", title: "when the run fails if nothing happens until then", of: (row) => ofNano(row.deadline ?? null) },
    {
      name: "evidence",
      of: (row) => (
        <details>
          <summary>SQL</summary>
          <pre class="evidence" tabIndex={0}>{visible(row.evidence)}</pre>
          <OpenQuery run={run} sql={row.evidence} />
        </details>
      ),
    },
    {
      name: "command",
      title: "helps if it takes too long. Before `resume`, stop the run with Ctrl-C",
      of: (row) => row.mend ? <details><summary>command</summary><Copied title="command" text={row.mend} /></details> : "–",
    },
  ];
}

function OpenQuery({ run, sql }: { run: string; sql: string }) {
  return <a href={to(run, "query", "", { sql })}>open its rows</a>;
}

function Finding({ run, finding }: { run: string; finding: Checked["findings"][number] }) {
  const facts: [string, ComponentChildren][] = Object.entries(finding).map(([name, value]) => [
    name.replaceAll("_", " "),
    Array.isArray(value)
      ? <span class="spread">{value.map((id) => <a key={id} href={to(run, "rollouts", id)}>{visible(id)}</a>)}</span>
      : typeof value === "number" ? figure(value) : cell(value),
  ]);
  return <Facts of={facts} />;
}

function Alarm({ run, alarm }: { run: string; alarm: Checked }) {
  const { name, finds, sql, findings } = alarm;
  return (
    <article class="alarm">
      <h3><span class="status failed">{alarm.severity}</span> {name.replaceAll("_", " ")}</h3>
      <p>{visible(finds)}</p>
      {findings.map((finding, at) => <Finding key={at} run={run} finding={finding} />)}
      <Copied title="SQL" text={sql} />
      <OpenQuery run={run} sql={sql} />
    </article>
  );
}

function AlarmList({ run, alarms }: { run: string; alarms: Alarms }) {
  const raised = alarms.detectors.filter((detector) => detector.findings.length > 0);
  const quiet = alarms.detectors.filter((detector) => !detector.findings.length);
  return (
    <>
      {raised.map((alarm) => <Alarm key={alarm.name} run={run} alarm={alarm} />)}
      {!raised.length && <p>No alarm over {alarms.graded.toLocaleString("en")} graded samples.</p>}
      <details class="source">
        <summary>
          {quiet.length} detectors without a finding <span class="quiet">log position {alarms.position.toLocaleString("en")}</span>
        </summary>
        <Table
          rows={quiet}
          label="detectors without a finding"
          columns={[
            { name: "detector", of: (row) => row.name.replaceAll("_", " ") },
            { name: "finds", of: (row) => <span class="wraps">{visible(row.finds)}</span> },
            { name: "SQL", of: (row) => <a href={to(run, "query", "", { sql: row.sql })}><code>{row.sql}</code></a> },
          ]}
        />
        <Copied title="command" text={alarms.command} />
      </details>
    </>
  );
}

function State({ run, page }: { run: string; page: NowPage }) {
  const now = page.now + useAge(page);
  const behind = Object.entries(page.behind).map(([versions, groups]) => `${groups} by ${versions}`).join(", ");
  const limit = page.staleness_bound === null ? "" : `, limit ${page.staleness_bound}`;
  return (
    <>
      <h1>Now <span class={`status ${page.status}`}>{page.status}</span></h1>
      <p>{visible(page.meaning)}</p>
      {page.failure && <p class="error">{visible(page.failure)}</p>}
      {page.mend && <Copied title="command" text={page.mend} />}
      <Facts
        steady
        of={[
          ["steps", `${page.steps} of ${cell(page.steps_wanted)}`],
          ["weight version", <a href={to(run, "versions", String(page.version))}>{page.version}</a>],
          ["waits for", cell(page.waits_for)],
          ["last event, UTC", ofNano(page.at)],
          ["without an event for", page.status === "running" ? lasting(now - page.at) : "–"],
          ["open groups", `${page.open_groups}${page.room === null ? "" : ` of ${page.room}`}`],
          ["versions behind", behind ? behind + limit : `–${limit}`],
          ["workers", visible(Object.entries(page.workers).map(([worker, role]) => (worker === role ? role : `${worker} (${role})`)).join(", ")) || "–"],
        ]}
      />
      {(page.activities.length > 0 || page.status === "running") && (
        <section class="activities" aria-label="activities">
          <h2>Who does what</h2>
          <Table rows={page.activities} columns={activityColumns(run, now)} label="who does what" />
        </section>
      )}
    </>
  );
}

function Latest({ run, page }: { run: string; page: NowPage }) {
  return (
    <>
      <h2>Latest decisions</h2>
      <Table rows={page.decisions} columns={decisionColumns(run)} label="latest decisions" />
      <Source source={page.source} />
    </>
  );
}

/** Keeps the place of an alarm that ends, so that nothing below it moves. */
function keepHeight(box: HTMLDivElement | null): void {
  if (!box || kept) return;
  let most = 0;
  new ResizeObserver(() => {
    most = Math.max(most, box.querySelector(".waits, details[open]") ? 0 : box.offsetHeight);
    box.style.minHeight = `${most}px`;
  }).observe(box);
}

export function Now({ run = "" }: Shown) {
  const page = useLoaded(`now ${run} ${growth()}`, (stop) => getJson<NowPage>(runPath(run, "now"), stop));
  const alarms = useLoaded(`alarms ${run} ${growth()} ${useLooks(page.value?.status === "running")}`, (stop) => getJson<Alarms>(runPath(run, "alarms"), stop));
  return (
    <Loading of={page}>
      {(state) => (
        <>
          <State run={run} page={state} />
          <h2>Alarms</h2>
          <div class="alarms" ref={keepHeight}>
            <Loading of={alarms}>{(checked) => <AlarmList run={run} alarms={checked} />}</Loading>
          </div>
          {(alarms.value || alarms.error) && <Latest run={run} page={state} />}
        </>
      )}
    </Loading>
  );
}

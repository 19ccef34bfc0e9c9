// The time machine: the run at a position of its log, and what differs at another one.
import type { ComponentChildren } from "preact";
import { useLocation } from "preact-iso";
import { useRef } from "preact/hooks";
import { getJson, runPath } from "../api";
import type { LogEvent, MomentPage, MomentView, OpenGroup, PositionList } from "../answers";
import { decisionColumns, Subject } from "../decisions";
import { byFile, cell, figure, ofNano, visible } from "../format";
import { to } from "../links";
import { type Column, Facts, Source, Table } from "../parts";
import { PositionField, PositionSlider } from "../position";
import { growth, useLoaded } from "../use";
import type { Shown } from "./index";
import { Difference } from "./time_difference";

/** Rows of a table that are shown: a large run has thousands of rollouts that wait. */
const MOST = 100;

function First<T>({ rows, columns, label }: { rows: T[]; columns: Column<T>[]; label: string }) {
  return (
    <>
      <Table rows={rows.slice(0, MOST)} columns={columns} label={label} />
      {rows.length > MOST && <p class="quiet">{(rows.length - MOST).toLocaleString("en")} more: the command below lists them.</p>}
    </>
  );
}

/** Numbers by name on one line. */
function counted(of: Record<string, number>): string {
  return Object.entries(of).map(([name, count]) => `${figure(count)} ${visible(name).replaceAll("_", " ")}`).join(", ") || "–";
}

function eventColumns(run: string): Column<LogEvent>[] {
  return [
    { name: "position", number: true, of: (row) => cell(row.position) },
    { name: "UTC", of: (row) => ofNano(row.at) },
    { name: "event", of: (row) => row.type },
    { name: "about", of: (row) => <Subject run={run} type={row.type} about={row.entity} /> },
    { name: "by", of: (row) => visible(row.producer) },
  ];
}

function groupColumns(run: string): Column<OpenGroup>[] {
  return [
    { name: "group", of: (row) => <a href={to(run, "groups", row.group)}>{visible(row.group)}</a> },
    { name: "stage", of: (row) => row.phase },
    { name: "samples", of: (row) => counted(row.samples) },
    { name: "tokens", number: true, of: (row) => cell(row.tokens) },
    { name: "rewards", of: (row) => row.rewards.map(figure).join(", ") },
    { name: "versions behind", number: true, of: (row) => cell(row.behind) },
    { name: "for, s", number: true, of: (row) => cell(row.seconds) },
  ];
}

function Part({ title, children }: { title: string; children: ComponentChildren }) {
  return <section aria-label={title}><h2>{title}</h2>{children}</section>;
}

function State({ run, moment }: { run: string; moment: MomentView }) {
  const { counts, backpressure, staleness } = moment;
  const behind = Object.entries(staleness.behind).map(([versions, groups]) => `${groups} by ${versions}`).join(", ") || "–";
  return (
    <Facts
      of={[
        ["position", moment.position],
        ["UTC", ofNano(moment.at)],
        ["after the start", `${figure(moment.seconds)} s`],
        ["stage", <span class={`status ${moment.phase}`}>{visible(moment.phase)}</span>],
        ["waits for", cell(moment.waits_for)],
        ["steps", `${moment.steps} of ${cell(moment.steps_wanted)}`],
        ["weight version", moment.version < 0 ? "–" : <a href={to(run, "versions", String(moment.version))}>{moment.version}</a>],
        ["published", moment.published < 0 ? "–" : moment.published],
        ["weights digest", moment.weights_digest.slice(0, 12) || "–"],
        ["open groups", `${backpressure.open}${backpressure.room === null ? "" : ` of ${backpressure.room}`}, ${backpressure.unsealed} in no batch`],
        ["versions behind", `${behind}${staleness.bound === null ? "" : `, limit ${staleness.bound}`}`],
        ["in training", moment.sealed.map((batch) => `step ${batch.step}: ${batch.groups.length} groups`).join(", ") || "–"],
        ["in evaluation", moment.evals.map((one) => `${visible(one.dataset)} of v${one.version}`).join(", ") || "–"],
        ["groups", `${counts.groups_accepted} accepted, ${counts.groups_rejected} rejected, ${counts.groups_trained} trained on`],
        ["samples", `${counts.samples_completed} completed, ${counts.samples_failed} failed, ${counts.rewards_failed} ungraded, ${counts.suspensions} suspended`],
        ["tokens generated", counts.response_tokens],
        ["rejected by", counted(moment.rejections)],
        ["prompts drawn", counted(byFile(moment.cursors))],
      ]}
    />
  );
}

function Engines({ moment }: { moment: MomentView }) {
  return (
    <Table
      rows={moment.engines}
      label="engines"
      columns={[
        { name: "engine", of: (row) => visible(row.engine) },
        { name: "version", number: true, of: (row) => cell(row.version) },
        { name: "rollouts", number: true, of: (row) => row.rollouts.length },
        { name: "tokens so far", number: true, of: (row) => cell(row.rollouts.reduce((sum, one) => sum + one.tokens, 0)) },
      ]}
    />
  );
}

function Moment({ run, page }: { run: string; page: MomentPage }) {
  const { moment } = page;
  return (
    <>
      {page.difference && <Part title="Difference"><Difference run={run} difference={page.difference} source={page.difference_source} /></Part>}
      <Part title="The run there">
        {moment.failure && <p class="error">{visible(moment.failure)}</p>}
        <State run={run} moment={moment} />
      </Part>
      <Part title="Last events"><Table rows={page.events} columns={eventColumns(run)} label="last events" /></Part>
      {moment.engines.length > 0 && <Part title="Engines"><Engines moment={moment} /></Part>}
      <p>{moment.queued.length.toLocaleString("en")} rollouts that no engine has begun.</p>
      <Part title={`${moment.groups.length.toLocaleString("en")} open groups`}>
        <First rows={moment.groups} columns={groupColumns(run)} label="open groups" />
      </Part>
      <Part title="Latest decisions">
        <Table rows={[...moment.decisions].reverse()} columns={decisionColumns(run)} label="latest decisions" />
      </Part>
      <Source source={page.source} />
    </>
  );
}

export function TimeMachine({ run = "" }: Shown) {
  const { query, route } = useLocation();
  const { at, other } = query;
  const places = useLoaded(`positions ${run} ${growth()}`, (stop) => getJson<PositionList>(runPath(run, "positions"), stop));
  const words = new URLSearchParams({ ...(at ? { at } : {}), ...(other ? { other } : {}) });
  const page = useLoaded(`moment ${run} ${words} ${at ? "" : growth()}`, (stop) =>
    getJson<MomentPage>(`${runPath(run, "moment")}?${words}`, stop));
  const last = useRef<MomentPage | null>(null);
  if (page.value) last.current = page.value;
  const known = last.current;
  const end = Math.max(known?.moment.end ?? 1, places.value?.end ?? 1);
  const show = (changed: { at?: string; other?: string }) =>
    route(to(run, "time", "", { at: at ?? "", other: other ?? "", ...changed }), true);
  const here = known?.moment.position ?? 1;
  const difference = known?.difference;
  const there = difference ? (difference.from.position === here ? difference.to.position : difference.from.position) : here;
  const slider = { end, commits: places.value?.positions ?? [] };
  return (
    <>
      <h1>Time machine <span class="quiet" role="status">{page.loading ? "reading …" : ""}</span></h1>
      {known && (
        <div class="positions">
          <PositionSlider label="position" value={here} onMove={(position) => show({ at: String(position) })} {...slider} />
          {other !== undefined && (
            <PositionSlider label="other position" value={there} onMove={(position) => show({ other: String(position) })} {...slider} />
          )}
        </div>
      )}
      <div class="tools">
        <PositionField label="position" name="at" onGo={(text) => show({ at: text })} />
        {other === undefined ? (
          <button onClick={() => show({ other: String(here) })}>compare with another position</button>
        ) : (
          <>
            <PositionField label="other position" name="other" onGo={(text) => show({ other: text })} />
            <button onClick={() => show({ other: "" })}>end the comparison</button>
          </>
        )}
        {at && <button onClick={() => show({ at: "" })}>to the end of the log</button>}
      </div>
      {page.error && <p class="error" role="alert">{visible(page.error)}</p>}
      {!page.error && !known && <p class="quiet waits">loading …</p>}
      {page.value && <Moment run={run} page={page.value} />}
    </>
  );
}

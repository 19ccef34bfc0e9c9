// What differs between two positions of a log.
import type { AnswerSource, GroupProgress, MomentDiff } from "../answers";
import { decisionColumns } from "../decisions";
import { byFile, cell, figure, ofNano, visible } from "../format";
import { to } from "../links";
import { Facts, Source, Table } from "../parts";

/** Changes of one kind that are shown. */
const MOST = 100;

interface Row {
  what: string;
  was: string;
  now: string;
}

type Changed = Record<string, [string | number | null, string | number | null]>;

function short(name: string, value: string | number | null): string {
  return name.endsWith("digest") && typeof value === "string" ? cell(value.slice(0, 12)) : cell(value);
}

function changes(of: Changed, prefix = ""): Row[] {
  return Object.entries(of).map(([name, [was, now]]) => ({
    what: prefix + visible(name).replaceAll("_", " "),
    was: short(name, was),
    now: short(name, now),
  }));
}

function increases(of: Record<string, number>, prefix = ""): Row[] {
  return Object.entries(of).map(([name, more]) => ({
    what: prefix + visible(name).replaceAll("_", " "),
    was: "",
    now: `${more < 0 ? "" : "+"}${figure(more)}`,
  }));
}

function progress({ phase, samples, tokens }: GroupProgress): string {
  return [phase, ...Object.entries(samples).map(([name, count]) => `${count} ${name}`), `${figure(tokens)} tokens`].join(", ");
}

function groupRows({ opened, closed, moved }: MomentDiff["groups"]): (Row & { group: string })[] {
  return [
    ...Object.entries(opened).map(([group, phase]) => ({ group, what: "opened", was: "", now: phase as string })),
    ...Object.entries(closed).map(([group, fate]) => ({ group, what: "closed", was: "", now: fate })),
    ...Object.entries(moved).map(([group, [was, now]]) => ({ group, what: "moved", was: progress(was), now: progress(now) })),
  ];
}

export function Difference({ run, difference, source }: { run: string; difference: MomentDiff; source: AnswerSource | null }) {
  const { from, to: until } = difference;
  const groups = groupRows(difference.groups);
  const rows = [
    ...changes(difference.changed),
    ...changes(difference.backpressure),
    ...changes(difference.engines, "version of "),
    ...changes(byFile(difference.cursors), "prompts drawn of "),
    ...increases(difference.counts),
    ...increases(difference.rejections, "rejected by "),
  ];
  const decisions = difference.decisions.slice(-MOST);
  const left = difference.decisions.length - decisions.length + difference.verdicts_left_out;
  return (
    <>
      <Facts
        of={[
          ["from", `${figure(from.position)}, ${ofNano(from.at)}`],
          ["to", `${figure(until.position)}, ${ofNano(until.at)}`],
          ["events", difference.events],
          ["time between", `${figure(difference.seconds)} s`],
        ]}
      />
      {rows.length === 0 && <p class="quiet">No figure differs.</p>}
      {rows.length > 0 && (
        <Table
          rows={rows}
          label="figures that differ"
          columns={[
            { name: "figure", of: (row) => row.what },
            { name: "was", of: (row) => <span class="wraps">{row.was}</span> },
            { name: "is, or increase", of: (row) => <span class="wraps">{row.now}</span> },
          ]}
        />
      )}
      {groups.length > 0 && <h3>{groups.length.toLocaleString("en")} groups differ</h3>}
      {groups.length > 0 && (
        <Table
          rows={groups.slice(0, MOST)}
          label="groups that differ"
          columns={[
            { name: "group", of: (row) => <a href={to(run, "groups", row.group)}>{visible(row.group)}</a> },
            { name: "change", of: (row) => row.what },
            { name: "was", of: (row) => row.was },
            { name: "is", of: (row) => row.now },
          ]}
        />
      )}
      {groups.length > MOST && <p class="quiet">{groups.length - MOST} more: the command below lists them.</p>}
      {decisions.length > 0 && <h3>Decisions between</h3>}
      {left > 0 && <p class="quiet">{left.toLocaleString("en")} earlier decisions are not listed.</p>}
      {decisions.length > 0 && <Table rows={decisions} columns={decisionColumns(run)} label="decisions between" />}
      {source && <Source source={source} title="SQL and command of the difference" />}
    </>
  );
}

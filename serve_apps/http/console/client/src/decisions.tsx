// Decisions of a run, or outcomes of decisions, in a table.
import type { RunDecision } from "./answers";
import { cell, figure, ofNano, visible } from "./format";
import { to } from "./links";
import type { Column } from "./parts";

/** The subject of a decision or an event, as a link if it has a page. */
export function Subject({ run, type, about }: { run: string; type: string; about: string }) {
  const noun = type.slice(0, type.indexOf("."));
  const view = { step: "steps", batch: "steps", group: "groups", prompt: "groups", rollout: "rollouts", reward: "rollouts" }[noun];
  return view ? <a href={to(run, view, about.replace(/^step /, ""))}>{visible(about)}</a> : <>{visible(about)}</>;
}

export function decisionColumns(run: string): Column<RunDecision>[] {
  return [
    { name: "UTC", of: (row) => ofNano(row.at) },
    { name: "position", number: true, of: (row) => <a href={to(run, "time", "", { at: String(row.position) })}>{cell(row.position)}</a> },
    { name: "event", of: (row) => row.type },
    { name: "about", of: (row) => <Subject run={run} type={row.type} about={row.about} /> },
    { name: "reason", of: (row) => <span class="wraps">{visible(row.reason)}</span> },
    { name: "figures", of: (row) => Object.entries(row.figures).map(([name, value]) => `${visible(name)} ${figure(value)}`).join(", ") },
  ];
}

// A run beside its own rollouts under another reward, filter or advantage estimator.
import { useLocation } from "preact-iso";
import { useMemo } from "preact/hooks";
import { getJson, runPath } from "../api";
import type { FlippedGroup, Report, RescoreChoices, RescoredStep, RescorePage } from "../answers";
import { Chart, type Curve } from "../chart";
import { figure, visible } from "../format";
import { to } from "../links";
import { Copied, Facts, Loading, Table } from "../parts";
import { growth, useLoaded } from "../use";
import type { Shown } from ".";

const KINDS = [
  { name: "reward", choices: "rewards", label: "reward" },
  { name: "filter", choices: "filters", label: "filter of groups" },
  { name: "estimator", choices: "estimators", label: "advantage estimator" },
] as const;

const number = (value: number | null) => (value === null ? "–" : figure(value));

function Choice({ run, choices, chosen }: { run: string; choices: RescoreChoices; chosen: Record<string, string> }) {
  const { route } = useLocation();
  const send = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.target as HTMLFormElement);
    route(to(run, "rescore", "", Object.fromEntries([...form].map(([name, value]) => [name, String(value)]))));
  };
  return (
    <form class="tools" onSubmit={send} key={JSON.stringify(chosen)}>
      {KINDS.map(({ name, choices: from, label }) => (
        <label key={name}>
          {label}{" "}
          <select name={name}>
            <option value="">as in the run{choices.run[name] && ` (${visible(choices.run[name])})`}</option>
            {choices[from].map((each) => <option key={each} value={each} selected={each === chosen[name]}>{visible(each)}</option>)}
          </select>
        </label>
      ))}
      <button>rescore</button>
    </form>
  );
}

function Rewards({ report }: { report: Report }) {
  const { rewards_before: before, rewards_after: after } = report;
  const most = Math.max(1, ...[...before.bars, ...after.bars].map(([, , count]) => count));
  const bar = (count: number) => (
    <>
      <span class="amount" style={{ width: `${(100 * count) / most}px` }} /> {count.toLocaleString("en")}
    </>
  );
  const rows = before.bars.map(([low, high, count], at) => ({ low, high, count, other: after.bars[at][2] }));
  return (
    <>
      <h2>Rewards</h2>
      <Facts
        of={[
          ["mean, std before", `${number(before.mean)}, ${number(before.std)}`],
          ["mean, std after", `${number(after.mean)}, ${number(after.std)}`],
          ["graded differently", `${report.samples.changed.toLocaleString("en")} of ${report.samples.graded.toLocaleString("en")}`],
        ]}
      />
      <Table
        rows={rows}
        label="rewards"
        columns={[
          { name: "reward", number: true, of: ({ low, high }) => (low === high ? figure(low) : `${figure(low)} to ${figure(high)}`) },
          { name: "samples before", of: ({ count }) => bar(count) },
          { name: "samples after", of: ({ other }) => bar(other) },
        ]}
      />
    </>
  );
}

function Flips({ run, title, count, examples }: { run: string; title: string; count: number; examples: FlippedGroup[] }) {
  if (!count) return null;
  const rewards = (values: (number | null)[]) => values.map(number).join(" ");
  return (
    <>
      <h3>{title}: {count.toLocaleString("en")}{count > examples.length && `, the first ${examples.length}`}</h3>
      <Table
        rows={examples}
        label={title}
        columns={[
          { name: "group", of: ({ group }) => <a href={to(run, "groups", group)}>{visible(group)}</a> },
          { name: "step", number: true, of: ({ step }) => step },
          { name: "rewards before", of: ({ before }) => rewards(before) },
          { name: "rewards after", of: ({ after }) => rewards(after) },
          { name: "reason", of: ({ reason }) => visible(reason ?? "") },
        ]}
      />
    </>
  );
}

function Groups({ run, report: { groups } }: { run: string; report: Report }) {
  return (
    <>
      <h2>
        Groups accepted: {groups.accepted_before.toLocaleString("en")} before, {groups.accepted_after.toLocaleString("en")} after, of{" "}
        {groups.decided.toLocaleString("en")}
      </h2>
      <Flips run={run} title="accepted before, rejected after" count={groups.rejected_now} examples={groups.rejected_examples} />
      <Flips run={run} title="rejected before, accepted after" count={groups.accepted_now} examples={groups.accepted_examples} />
    </>
  );
}

function Steps({ run, steps }: { run: string; steps: RescoredStep[] }) {
  const { route } = useLocation();
  const x = useMemo(() => steps.map((step) => step.step), [steps]);
  const curves = useMemo<Curve[]>(
    () => [
      { label: "after", values: steps.map((step) => step.ess_after), colour: "second", kind: "dashed" },
      { label: "before", values: steps.map((step) => step.ess_before), colour: "first", kind: "line" },
    ],
    [steps],
  );
  const differ = steps.filter((step) => step.lost || step.offered || step.advantages || step.tokens);
  return (
    <>
      <h2>Steps that differ: {differ.length} of {steps.length}</h2>
      <div class="charts">
        <Chart title="effective samples (Kish, by |advantage|)" x={x} curves={curves} onPick={(at) => route(to(run, "steps", String(steps[at].step)))} />
      </div>
      <Table
        rows={differ}
        label="steps that differ"
        columns={[
          { name: "step", number: true, of: ({ step }) => <a href={to(run, "steps", String(step))}>{step}</a> },
          { name: "samples before", number: true, of: ({ samples }) => samples },
          { name: "samples after", number: true, title: "samples of the groups that stay", of: ({ samples_after }) => samples_after },
          { name: "groups lost", number: true, of: ({ lost }) => lost },
          { name: "groups offered", number: true, title: "groups that would be accepted while it was the next step", of: ({ offered }) => offered },
          { name: "other advantages", number: true, title: "samples of the groups that stay whose advantage changes", of: ({ advantages }) => advantages },
          { name: "effective before", number: true, of: ({ ess_before }) => figure(ess_before) },
          { name: "effective after", number: true, of: ({ ess_after }) => figure(ess_after) },
        ]}
      />
    </>
  );
}

function Rescored({ run, report, page }: { run: string; report: Report; page: RescorePage }) {
  return (
    <>
      <p class="quiet">{report.changed.map(visible).join(" · ")}</p>
      {page.same && <p>Nothing would differ: the same rewards, verdicts, batches and advantages.</p>}
      <Rewards report={report} />
      <Groups run={run} report={report} />
      {report.steps.length > 0 && <Steps run={run} steps={report.steps} />}
      {page.first_difference !== null && (
        <p class="quiet">
          These are rollouts of the recorded policy. From step {page.first_difference} on, a run under these settings would have trained differently
          and made other rollouts.
        </p>
      )}
    </>
  );
}

export function Rescore({ run = "" }: Shown) {
  const { query } = useLocation();
  const chosen = Object.fromEntries(KINDS.map(({ name }) => [name, query[name] ?? ""]));
  const path = `${runPath(run, "rescore")}?${new URLSearchParams(chosen)}`;
  const page = useLoaded(`${path} ${growth()}`, (stop) => getJson<RescorePage>(path, stop));
  return (
    <>
      <h1>Run and rescore</h1>
      <p class="quiet">The recorded rollouts under another reward, filter or advantage estimator of ours. Nothing is generated or changed.</p>
      <Loading of={page}>
        {(read) => (
          <>
            <Choice run={run} choices={read.choices} chosen={chosen} />
            {read.report ? <Rescored run={run} report={read.report} page={read} /> : <p class="quiet">Choose what to change.</p>}
            <details class="source">
              <summary>SQL and command <span class="quiet">log position {read.position.toLocaleString("en")}</span></summary>
              <Copied title="command" text={read.command} />
              <Copied title="SQL of the recorded rewards" text={read.sql} />
            </details>
          </>
        )}
      </Loading>
    </>
  );
}

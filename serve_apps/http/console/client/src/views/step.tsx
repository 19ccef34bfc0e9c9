// The list of steps, and one step with its batch.
import { getJson, runPath } from "../api";
import type { StepList, StepPage, StepView } from "../answers";
import { cell, figure, ofNano, visible } from "../format";
import { to } from "../links";
import { type Column, Facts, Loading, Source, Table } from "../parts";
import { type Counted, Packing, ShareNotes, shareColumns } from "../step_loss";
import { growth, useLoaded } from "../use";
import type { Shown } from "./index";

function columnsOf(run: string, page: StepPage): Column<Counted>[] {
  return [
    { name: "sample", of: (row) => <a href={to(run, "rollouts", row.sample)}>{visible(row.sample)}</a> },
    { name: "group", of: (row) => <a href={to(run, "groups", row.group)}>{visible(row.group)}</a> },
    { name: "reward", number: true, of: (row) => cell(row.reward) },
    { name: "normalised", number: true, of: (row) => cell(row.normalised) },
    { name: "tokens", number: true, of: (row) => cell(row.length) },
    ...shareColumns(page),
    { name: "stop", of: (row) => cell(row.stop) },
    { name: "versions", of: (row) => cell(row.versions) },
  ];
}

function Trained({ run, step }: { run: string; step: StepView }) {
  const done = step.committed;
  if (!done) return <p class="quiet">The trainer has not committed this step.</p>;
  const seconds = Object.entries(done.seconds).map(([name, value]) => `${name} ${figure(value)}`);
  return (
    <>
      <Facts
        of={[
          ["committed, UTC", ofNano(step.committed_at)],
          ["version", <a href={to(run, "versions", String(step.version))}>{step.version}</a>],
          ["trainer's time [s]", visible(seconds.join(", "))],
          ["weights", <code>{done.weights_digest}</code>],
          ["optimizer", <code>{done.optimizer_digest}</code>],
        ]}
      />
      <h2>Metrics</h2>
      <Facts of={Object.entries(done.metrics)} />
    </>
  );
}

function One({ run, id }: { run: string; id: string }) {
  const page = useLoaded(`step ${run} ${id} ${growth()}`, (stop) => getJson<StepPage>(runPath(run, "steps", id), stop));
  return (
    <Loading of={page}>
      {(shown) => {
        const { step, loss, source } = shown;
        return (
          <>
            <h1>Step {step.step}</h1>
            <p class="tools">
              {step.step > 0 && <a href={to(run, "steps", String(step.step - 1))}>← step {step.step - 1}</a>}
              <a href={to(run, "steps", String(step.step + 1))}>step {step.step + 1} →</a>
              <a href={to(run, "samples", "", { filter: `step:eq:${step.step}` })}>its samples</a>
            </p>
            <Facts
              of={[
                ["sealed, UTC", ofNano(step.sealed_at)],
                ["groups", step.groups.length],
                ["samples", step.samples.length],
                ["oldest version", step.oldest_version],
                ["batch", <code>{step.batch_digest}</code>],
              ]}
            />
            <Trained run={run} step={step} />
            <h2>Samples, in training order</h2>
            <ShareNotes loss={loss} />
            <Table rows={step.samples.map((sample, at) => ({ ...sample, ...loss.samples[at] }))} columns={columnsOf(run, shown)} label="samples of the step" />
            <Packing loss={loss} />
            <Source source={source} />
          </>
        );
      }}
    </Loading>
  );
}

function All({ run }: { run: string }) {
  const list = useLoaded(`steps ${run} ${growth()}`, (stop) => getJson<StepList>(runPath(run, "steps"), stop));
  return (
    <Loading of={list}>
      {({ columns, source }) => {
        const names = Object.keys(columns).filter((name) => name !== "weights_digest");
        const shown: Column<number>[] = names.map((name) => ({
          name: name.replace("_", " "),
          number: true,
          of: (at) => (name === "step" ? <a href={to(run, "steps", String(columns.step[at]))}>{columns.step[at]}</a> : cell(columns[name][at])),
        }));
        shown.push({ name: "weights", of: (at) => <code>{String(columns.weights_digest[at] ?? "–").slice(0, 12)}</code> });
        return (
          <>
            <h1>Steps</h1>
            <Table rows={columns.step.map((_, at) => at)} columns={shown} label="steps" />
            <Source source={source} />
          </>
        );
      }}
    </Loading>
  );
}

export function Step({ run = "", id }: Shown) {
  return id === undefined ? <All run={run} /> : <One run={run} id={id} />;
}

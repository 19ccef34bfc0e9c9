// Two runs: the first difference with the inputs of both sides, then their steps.
import { useLocation } from "preact-iso";
import { useMemo } from "preact/hooks";
import { getJson } from "../api";
import type { Comparison, ComparePage, ComparedRun, Difference, Distribution, Input, RunList, StepComparison } from "../answers";
import { Chart, type Curve, type Values } from "../chart";
import { cell, figure, visible } from "../format";
import { to } from "../links";
import { type Column, Copied, Loading, Table, Text } from "../parts";
import { useLoaded } from "../use";

/** Parts of a step, in the order in which one follows from another. */
const KINDS = ["prompt", "tokens", "reward", "decision", "batch", "gradient_norm", "digest"] as const;
/** Characters of a value in a cell of a table; a longer one is shown as a text of its own. */
const SHORT = 80;

const words = (name: string) => name.replaceAll("_", " ");
const value = (of: Input["a"]) => (typeof of === "number" ? String(of) : cell(of));

function inputColumns(head: string): Column<Input>[] {
  const side = (key: "a" | "b"): Column<Input>["of"] => (row) => <span class="cut">{value(row[key])}</span>;
  return [
    { name: head, of: (row) => visible(row.name) },
    { name: "A", of: side("a") },
    { name: "B", of: side("b") },
    { name: "same", of: (row) => (row.a === row.b ? <span class="quiet">equal</span> : <strong>differs</strong>) },
  ];
}

function Sides({ a, b }: { a: Input["a"]; b: Input["b"] }) {
  const texts = [value(a), value(b)];
  if (Math.max(...texts.map((text) => text.length)) <= SHORT) return null;
  return (
    <div class="beside">
      {texts.map((text, at) => <section key={at} aria-label={`run ${"AB"[at]}`}><h3>{"AB"[at]}</h3><Text text={text} label={`value in run ${"AB"[at]}`} /></section>)}
    </div>
  );
}

/** The place of a difference in one run, as links. */
function Place({ run, first, position }: { run: string; first: Difference; position: number | null }) {
  return (
    <span class="spread">
      <strong>{visible(run)}</strong>
      {first.sample && <a href={to(run, "rollouts", first.sample)}>{visible(first.sample)}</a>}
      {first.group && <a href={to(run, "groups", first.group)}>group {visible(first.group)}</a>}
      {first.step !== null && <a href={to(run, "steps", String(first.step))}>step {first.step}</a>}
      <span class="quiet">{position === null ? "not in its log" : `log position ${position.toLocaleString("en")}`}</span>
    </span>
  );
}

function First({ first, a, b }: { first: Difference; a: string; b: string }) {
  const where = first.step === null ? "before the first step" : `step ${first.step}`;
  const values: Input = { name: words(first.field), a: first.a, b: first.b };
  return (
    <>
      <h2>
        First difference: {where}, {words(first.kind)}: {visible(words(first.field))}
        {first.index !== null && ` ${first.index}`}
      </h2>
      <p class="sides"><Place run={a} first={first} position={first.a_position} /><Place run={b} first={first} position={first.b_position} /></p>
      <Table rows={[values]} columns={inputColumns("value")} label="values that differ" />
      <Sides a={first.a} b={first.b} />
      {first.inputs.length > 0 && <h2>What it was computed from</h2>}
      {first.inputs.length > 0 && <Table rows={first.inputs} columns={inputColumns("input")} label="inputs" />}
    </>
  );
}

function Equal({ steps }: { steps: StepComparison[] }) {
  if (!steps.length) return <p>The runs have no step in common, and what both have before it is equal.</p>;
  return (
    <p>
      Equal in steps {steps[0].step} to {steps[steps.length - 1].step}: the same prompts, tokens, rewards, decisions, batches, gradient norms and digests.
    </p>
  );
}

type Figure = "rewards" | "lengths";

/** Mean of one side as a line, and its 10th to 90th percentile as an area. */
function curvesOf(steps: StepComparison[], side: "a" | "b", figures: Figure): Curve[] {
  const of = (name: keyof Distribution): Values => steps.map((step) => step[side][figures]?.[name] ?? null);
  const colour = side === "a" ? "first" : "second";
  const label = side.toUpperCase();
  return [
    { label: `${label}: p10`, values: of("p10"), colour, kind: "lower" },
    { label: "p90", values: of("p90"), colour, kind: "upper" },
    { label: "mean", values: of("mean"), colour, kind: side === "a" ? "line" : "dashed" },
  ];
}

function Distributions({ comparison }: { comparison: Comparison }) {
  const { route } = useLocation();
  const { steps, a } = comparison;
  const x = useMemo(() => steps.map((step) => step.step), [steps]);
  const curves = useMemo(
    () => (["rewards", "lengths"] as const).map((figures) => [...curvesOf(steps, "b", figures), ...curvesOf(steps, "a", figures)]),
    [steps],
  );
  const open = (at: number) => route(to(a.run, "steps", String(steps[at].step)));
  return (
    <>
      <h2>Steps</h2>
      <p class="quiet">
        <span class="key" /> {visible(a.run)}, <span class="key second" /> {visible(comparison.b.run)}; the line is the mean over the batch, the area
        p10 to p90. A click on a point opens the step of {visible(a.run)}.
      </p>
      <div class="charts">
        <Chart title="reward: mean, p10, p90" x={x} curves={curves[0]} onPick={open} />
        <Chart title="response length [tokens]: mean, p10, p90" x={x} curves={curves[1]} onPick={open} />
      </div>
    </>
  );
}

function mean(of: Distribution | null): string {
  return of === null ? "–" : `${figure(of.mean)} (${figure(of.p10)} to ${figure(of.p90)})`;
}

function stepColumns({ a, b }: Comparison): Column<StepComparison>[] {
  return [
    { name: "step", number: true, of: ({ step }) => <><a href={to(a.run, "steps", String(step))}>{step} A</a> <a href={to(b.run, "steps", String(step))}>B</a></> },
    ...KINDS.map((kind) => ({
      name: words(kind),
      number: true,
      title: `number of differences: ${words(kind)}`,
      of: ({ differences }: StepComparison) => (differences[kind] ? <strong>{differences[kind].toLocaleString("en")}</strong> : <span class="quiet">0</span>),
    })),
    { name: "samples A / B", number: true, of: (row) => `${row.a.samples} / ${row.b.samples}` },
    { name: "reward A", number: true, of: (row) => mean(row.a.rewards) },
    { name: "reward B", number: true, of: (row) => mean(row.b.rewards) },
    { name: "length A", number: true, of: (row) => mean(row.a.lengths) },
    { name: "length B", number: true, of: (row) => mean(row.b.lengths) },
  ];
}

const stepsOf = ({ first_step, last_step }: ComparedRun) => (last_step === null ? "none" : `${first_step} to ${last_step}`);

function Both({ page }: { page: ComparePage }) {
  const { comparison, command, sql } = page;
  const { a, b, settings, first, steps } = comparison;
  const runs: [string, ComparedRun, number][] = [["A", a, page.a_position], ["B", b, page.b_position]];
  return (
    <>
      <Table
        rows={runs}
        label="runs"
        columns={[
          { name: "side", of: ([side]) => side },
          { name: "run", of: ([, run]) => <a href={to(run.run, "metrics")}>{visible(run.run)}</a> },
          { name: "steps", of: ([, run]) => stepsOf(run) },
          { name: "log position", number: true, of: ([, , position]) => cell(position) },
        ]}
      />
      {first ? <First first={first} a={a.run} b={b.run} /> : <Equal steps={steps} />}
      <h2>{settings.length ? `${settings.length} settings, versions and machine facts that differ` : "No setting differs"}</h2>
      {settings.length > 0 && <Table rows={settings} columns={inputColumns("setting").slice(0, 3)} label="settings that differ" />}
      {steps.length > 0 && <Distributions comparison={comparison} />}
      {steps.length > 0 && <Table rows={steps} columns={stepColumns(comparison)} label="steps" />}
      <details class="source">
        <summary>SQL and command</summary>
        <Copied title="command" text={command} />
        <Copied title="SQL, each run" text={sql} />
      </details>
    </>
  );
}

/** A comparison whose runs have their names in the console's URLs. */
function named(page: ComparePage, a: string, b: string): ComparePage {
  const { comparison } = page;
  return { ...page, comparison: { ...comparison, a: { ...comparison.a, run: a }, b: { ...comparison.b, run: b } } };
}

function Compared({ a, b }: { a: string; b: string }) {
  const page = useLoaded(`compare ${JSON.stringify([a, b])}`, (stop) =>
    getJson<ComparePage>(`/api/compare?${new URLSearchParams({ a, b })}`, stop),
  );
  return <Loading of={page}>{(read) => <Both page={named(read, a, b)} />}</Loading>;
}

/** Two of the served runs. */
function Choice({ names, a, b }: { names: string[]; a: string; b: string }) {
  const { route } = useLocation();
  const send = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.target as HTMLFormElement);
    route(`/compare?${new URLSearchParams({ a: String(form.get("a")), b: String(form.get("b")) })}`);
  };
  const choice = (side: string, chosen: string) => (
    <label>
      {side.toUpperCase()}{" "}
      <select name={side} aria-label={`run ${side.toUpperCase()}`}>
        {[...new Set([...names, chosen])].filter(Boolean).map((name) => <option key={name} value={name} selected={name === chosen}>{visible(name)}</option>)}
      </select>
    </label>
  );
  return (
    <form class="tools" onSubmit={send} key={`${a} ${b}`}>
      {choice("a", a)}
      {choice("b", b || (names.find((name) => name !== a) ?? ""))}
      <button>compare</button>
    </form>
  );
}

export function Compare() {
  const { query } = useLocation();
  const { a = "", b = "" } = query;
  const list = useLoaded("runs", (stop) => getJson<RunList>("/api/runs", stop));
  return (
    <>
      <h1>Compare two runs</h1>
      <Choice names={list.value?.runs.map(({ run }) => run) ?? []} a={a} b={b} />
      {a && <p><a href={to(a, "rescore")}>or {visible(a)} and its rescore under another reward, filter or advantage estimator</a></p>}
      {list.error && <p class="error" role="alert">{visible(list.error)}</p>}
      {a && b ? <Compared key={`${a} ${b}`} a={a} b={b} /> : <p class="quiet">Choose two of the served runs.</p>}
    </>
  );
}

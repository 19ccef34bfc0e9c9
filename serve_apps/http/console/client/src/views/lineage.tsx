// Lineage: the weight versions, one version with what it was trained on, and what some samples touched.
import { useLocation } from "preact-iso";
import { getJson, runPath } from "../api";
import type { TouchedPage, TouchedSample, TrainedPrompt, VersionList, VersionPage, VersionRange, VersionView } from "../answers";
import { type Cell, cell, figure, ofNano, visible } from "../format";
import { to } from "../links";
import { type Column, Copied, Facts, Loading, Source, Table } from "../parts";
import { growth, useLoaded } from "../use";
import type { Shown } from "./index";

/** What the page may be asked about, by the names of the server's query. */
const SUBJECTS = ["sample", "group", "source", "grader", "digest"] as const;

function VersionLink({ run, version }: { run: string; version: number }) {
  return <a href={to(run, "versions", String(version))}>v{version}</a>;
}

/** Versions by the run that made them; those of the shown run are links. */
function Ranges({ run, of }: { run: string; of: VersionRange[] }) {
  if (!of.length) return <>none</>;
  return (
    <>
      {of.map((part, at) => (
        <span key={part.run}>
          {at > 0 && ", "}
          {part.run === run ? <VersionLink run={run} version={part.first} /> : `v${part.first}`}
          {part.last > part.first && <> to {part.run === run ? <VersionLink run={run} version={part.last} /> : `v${part.last}`}</>}
          {" of "}
          {visible(part.run)}
        </span>
      ))}
    </>
  );
}

/** Columns of numbers and texts of a list, and how its first column is shown. */
function columnsOf(columns: Record<string, Cell[]>, head: Column<number>, left: string[]): Column<number>[] {
  const names = Object.keys(columns).filter((name) => !left.includes(name));
  return [
    head,
    ...names.map((name) => ({
      name: name.replaceAll("_", " "),
      number: true,
      of: (at: number) => (name.endsWith("digest") ? <code>{String(columns[name][at] ?? "–").slice(0, 12)}</code> : cell(columns[name][at])),
    })),
  ];
}

const rows = (columns: Record<string, Cell[]>, name: string) => columns[name].map((_, at) => at);

function All({ run }: { run: string }) {
  const list = useLoaded(`versions ${run} ${growth()}`, (stop) => getJson<VersionList>(runPath(run, "versions"), stop));
  return (
    <Loading of={list}>
      {({ columns, sources, graders, source, sources_source, graders_source }) => {
        const ofVersion = { name: "version", number: true, of: (at: number) => <VersionLink run={run} version={Number(columns.version[at])} /> };
        const ofSource = {
          name: "source",
          of: (at: number) => <a href={to(run, "versions", "", { source: String(sources.source[at]) })}>{cell(sources.source[at])}</a>,
        };
        const ofGrader = {
          name: "grader",
          of: (at: number) => (
            <a href={to(run, "versions", "", { grader: String(graders.grader[at]), digest: String(graders.grader_digest[at]) })}>
              {cell(graders.grader[at])}
            </a>
          ),
        };
        return (
          <>
            <h1>Weight versions</h1>
            <Ask run={run} />
            <h2>Sources of prompts</h2>
            <Table rows={rows(sources, "source")} columns={columnsOf(sources, ofSource, ["source"])} label="sources" />
            <h2>Graders</h2>
            <Table rows={rows(graders, "grader")} columns={columnsOf(graders, ofGrader, ["grader"])} label="graders" />
            <h2>Versions</h2>
            <Table rows={rows(columns, "version")} columns={columnsOf(columns, ofVersion, ["version"])} label="versions" />
            <Source source={source} title="SQL and command of the versions" />
            <Source source={sources_source} title="SQL and command of the sources" />
            <Source source={graders_source} title="SQL and command of the graders" />
          </>
        );
      }}
    </Loading>
  );
}

/** Asks what a prompt line, a sample or a group touched. */
function Ask({ run, kind = "source", value = "" }: { run: string; kind?: string; value?: string }) {
  const { route } = useLocation();
  const send = (event: SubmitEvent) => {
    event.preventDefault();
    const words = new FormData(event.target as HTMLFormElement);
    route(to(run, "versions", "", { [String(words.get("kind"))]: String(words.get("value")).trim() }));
  };
  return (
    <form class="tools" onSubmit={send} key={`${kind} ${value}`}>
      <label>
        what did this{" "}
        <select name="kind" aria-label="kind">
          {["source", "sample", "group"].map((name) => <option key={name} selected={name === kind}>{name}</option>)}
        </select>
      </label>
      <label class="wide">touch? <input name="value" defaultValue={value} placeholder="train.jsonl:178, inbox:KEY, or an id" /></label>
      <button>ask</button>
    </form>
  );
}

function promptColumns(run: string): Column<TrainedPrompt>[] {
  return [
    { name: "source", of: (row) => <a href={to(run, "versions", "", { source: row.subject })}>{visible(row.line)}</a> },
    { name: "prompt", of: (row) => (row.run === run ? <a href={to(run, "groups", row.group)}>{visible(row.group)}</a> : visible(`${row.group} of ${row.run}`)) },
    {
      name: "samples: reward",
      of: (row) => (
        <span class="spread">
          {row.rollouts.map(({ sample, reward, advantage, made_by }) => (
            <a
              key={sample}
              href={to(run, "versions", "", { sample })}
              title={visible(`${sample}: advantage ${cell(advantage)}, made by ${made_by || "–"}`)}
            >
              {cell(reward)}
            </a>
          ))}
        </span>
      ),
    },
    { name: "advantages", of: ({ rollouts }) => between(rollouts.map((rollout) => rollout.advantage)) },
    { name: "made by", of: ({ rollouts }) => visible([...new Set(rollouts.map((rollout) => rollout.made_by || "–"))].slice(0, 3).join(", ")) },
  ];
}

function between(values: (number | null)[]): string {
  const there = values.filter((value) => value !== null);
  if (!there.length) return "–";
  const [low, high] = [Math.min(...there), Math.max(...there)];
  return low === high ? figure(low) : `${figure(low)} to ${figure(high)}`;
}

/** Loads, evaluations and checkpoint of a version. */
function Use({ view }: { view: VersionView }) {
  const loads = view.activations.map((load) => `${load.engine} after ${figure(load.lag)} s`);
  const evals = view.evals.map((done) => `${done.dataset} ${figure(done.mean)}`);
  return (
    <Facts
      of={[
        ["published, UTC", ofNano(view.published_at)],
        ["loaded by", visible(loads.join(", ")) || "–"],
        ["evaluated", visible(evals.join(", ")) || "–"],
        ["weights", visible(view.published?.url ?? "–")],
        ["checkpoint", visible(view.checkpoint?.url ?? "–")],
        ["trainers that resumed from it", view.restored.length],
      ]}
    />
  );
}

function One({ run, id }: { run: string; id: string }) {
  const page = useLoaded(`version ${run} ${id} ${growth()}`, (stop) => getJson<VersionPage>(runPath(run, "versions", id), stop));
  return (
    <Loading of={page}>
      {({ version, newest, made_by, digest, approximate_since, view, step, reward_mean, prompts, ancestors, descendants, branches, notes, source }) => (
        <>
          <h1>Weight version {version} <span class="quiet">made by {visible(made_by)}</span></h1>
          <p class="tools">
            {version > 0 && <a href={to(run, "versions", String(version - 1))}>← v{version - 1}</a>}
            {version < newest && <a href={to(run, "versions", String(version + 1))}>v{version + 1} →</a>}
            <a href={to(run, "versions")}>all versions</a>
          </p>
          <Facts
            of={[
              ["made by step", step === null ? "none: the run begins with it" : <a href={to(run, "steps", String(step))}>{step}</a>],
              ["mean reward", reward_mean],
              ["derives from", <Ranges run={run} of={ancestors} />],
              ["from it derive", <Ranges run={run} of={descendants} />],
              ["branches of the run", branches.map((branch) => visible(`${branch.run} from v${branch.version}`)).join(", ") || "none"],
              ["optimizer", approximate_since === null ? "exact" : `approximate since v${approximate_since}`],
              ["digest", <code>{digest ?? "–"}</code>],
            ]}
          />
          {view ? <Use view={view} /> : <p class="quiet">The log of {visible(made_by)} has its publication and its use.</p>}
          {notes.map((note) => <p key={note} class="quiet">{visible(note)}</p>)}
          {prompts.length > 0 && <h2>Trained on {prompts.length} prompts</h2>}
          {prompts.length > 0 && <Table rows={prompts} columns={promptColumns(run)} label="prompts of the version" />}
          <Source source={source} />
        </>
      )}
    </Loading>
  );
}

function sampleColumns(run: string): Column<TouchedSample>[] {
  return [
    { name: "sample", of: (row) => (row.run === run ? <a href={to(run, "rollouts", row.sample)}>{visible(row.sample)}</a> : visible(`${row.sample} of ${row.run}`)) },
    { name: "group", of: (row) => (row.run === run ? <a href={to(run, "groups", row.group)}>{visible(row.group)}</a> : visible(row.group)) },
    { name: "reward", number: true, of: (row) => cell(row.reward) },
    { name: "normalised", number: true, of: (row) => cell(row.normalised) },
    { name: "step", number: true, of: (row) => (row.step === null ? "–" : <a href={to(run, "steps", String(row.step))}>{row.step}</a>) },
  ];
}

function LeaveOut({ commands, drop }: { commands: string[]; drop: string }) {
  if (!commands.length) return <p class="quiet">No step trained on them: no weights depend on them, and there is nothing to leave out.</p>;
  return (
    <>
      <h2>Train again without them</h2>
      <p class="quiet">
        This trains the steps from the first that trained on them again, into a new run: put its name in place of NAME. Nothing
        is generated again, and this run does not change.
      </p>
      {commands.map((command) => <Copied key={command} title="command" text={command} />)}
      <Copied title="its query" text={drop} />
    </>
  );
}

function What({ run, asked }: { run: string; asked: URLSearchParams }) {
  const page = useLoaded(`touched ${run} ${asked} ${growth()}`, (stop) => getJson<TouchedPage>(`${runPath(run, "touched")}?${asked}`, stop));
  const kind = SUBJECTS.find((name) => asked.has(name)) ?? "source";
  return (
    <>
      <Ask run={run} kind={kind} value={kind === "grader" ? "" : (asked.get(kind) ?? "")} />
      <Loading of={page}>
        {({ touched, source }) => (
          <>
            <h1>What it touched: <span class="quiet">{visible(touched.title)}</span></h1>
            <Facts
              of={[
                ["samples", touched.samples],
                ["in a batch", touched.trained],
                ["versions trained on them", touched.versions.length],
                ["from these derive", <Ranges run={run} of={touched.derived} />],
              ]}
            />
            {touched.notes.map((note) => <p key={note} class="quiet">{visible(note)}</p>)}
            <LeaveOut commands={touched.commands} drop={touched.drop} />
            {touched.versions.length > 0 && <h2>Versions that were trained on them</h2>}
            {touched.versions.length > 0 && (
              <Table
                rows={touched.versions}
                label="versions that were trained on them"
                columns={[
                  { name: "version", number: true, of: (row) => (row.version === null ? "not committed" : <VersionLink run={run} version={row.version} />) },
                  { name: "step", number: true, of: (row) => <a href={to(run, "steps", String(row.step))}>{row.step}</a> },
                  { name: "samples", number: true, of: (row) => cell(row.samples) },
                  { name: "groups", number: true, of: (row) => cell(row.groups) },
                ]}
              />
            )}
            <h2>Samples{touched.listed.length < touched.samples && `: the first ${touched.listed.length} of ${touched.samples.toLocaleString("en")}`}</h2>
            <Table rows={touched.listed} columns={sampleColumns(run)} label="samples" />
            <Source source={source} />
          </>
        )}
      </Loading>
    </>
  );
}

export function LineageView({ run = "", id }: Shown) {
  const { url } = useLocation();
  if (id !== undefined) return <One run={run} id={id} />;
  const words = new URL(url, "http://localhost").searchParams;
  const asked = new URLSearchParams(SUBJECTS.filter((name) => words.get(name)).map((name) => [name, words.get(name)!]));
  return asked.size ? <What key={String(asked)} run={run} asked={asked} /> : <All run={run} />;
}

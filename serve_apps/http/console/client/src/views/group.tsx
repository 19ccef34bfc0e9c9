// A group: its prompt, the decision, and its samples side by side.
import { getJson, runPath } from "../api";
import type { Decision, GroupPage, GroupSample } from "../answers";
import { cell, figure, json, ofNano, visible } from "../format";
import { to } from "../links";
import { Facts, Loading, Source, Text } from "../parts";
import { growth, useLoaded } from "../use";
import type { Shown } from "./index";

function Sibling({ run, sample, best }: { run: string; sample: GroupSample; best: boolean }) {
  return (
    <article class={best ? "sibling best" : "sibling"}>
      <h3>
        <a href={to(run, "rollouts", sample.sample)}>{visible(sample.sample)}</a>
        {best && <span class="mark">best</span>}
      </h3>
      <Facts
        of={[
          ["reward", sample.reward],
          ["tokens", sample.length],
          ["stop", cell(sample.stop)],
          ["versions", sample.versions],
          ["attempts", sample.attempts],
        ]}
      />
      {sample.failure && <p class="error">{visible(sample.failure)}</p>}
      <Text text={sample.text} label={`response of ${sample.sample}`} />
    </article>
  );
}

function Verdict({ decision }: { decision: Decision }) {
  const figures = Object.entries(decision.figures).map(([name, value]) => `${name} ${figure(value)}`);
  return (
    <Facts
      of={[
        ["decision", <strong>{decision.accepted ? "accepted" : `rejected: ${decision.cause}`}</strong>],
        ["reason", cell(decision.reason)],
        ["filter", visible(decision.filter)],
        ["figures", figures.join(", ") || "–"],
        ["decided, UTC", ofNano(decision.at)],
      ]}
    />
  );
}

export function Group({ run = "", id = "" }: Shown) {
  const key = `group ${run} ${id} ${growth()}`;
  const page = useLoaded(key, (stop) => getJson<GroupPage>(runPath(run, "groups", id), stop));
  return (
    <Loading of={page}>
      {({ group, source }) => {
        const most = Math.max(...group.samples.map((sample) => sample.reward ?? -Infinity));
        return (
          <>
            <h1>Group {visible(group.group)}</h1>
            <Facts
              of={[
                ["submitted, UTC", ofNano(group.submitted_at)],
                ["by", cell(group.submitted_by)],
                ["label", group.prompt ? json(group.prompt.label) : "–"],
                ["source", group.prompt ? visible(`${group.prompt.source.path}:${group.prompt.source.line ?? ""}`) : "–"],
                ["step", group.step === null ? "–" : <a href={to(run, "steps", String(group.step))}>{group.step}</a>],
                ["made version", group.version === null ? "–" : <a href={to(run, "versions", String(group.version))}>{group.version}</a>],
                ["lineage", <a href={to(run, "versions", "", { group: group.group })}>what it touched</a>],
              ]}
            />
            {group.decision ? <Verdict decision={group.decision} /> : <p class="quiet">No decision yet.</p>}
            <h2>Prompt</h2>
            <Text text={group.prompt?.text ?? ""} label="prompt" />
            <h2>{group.samples.length} samples</h2>
            <div class="siblings">
              {group.samples.map((sample) => (
                <Sibling key={sample.sample} run={run} sample={sample} best={sample.reward !== null && sample.reward === most} />
              ))}
            </div>
            <Source source={source} />
          </>
        );
      }}
    </Loading>
  );
}

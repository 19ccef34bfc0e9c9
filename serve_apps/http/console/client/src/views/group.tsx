// A group: its prompt, the decision, and its samples side by side.
import { useLocation } from "preact-iso";
import { getJson, runPath, type Tokens } from "../api";
import type { Decision, GroupPage, GroupSample } from "../answers";
import { cell, figure, json, ofNano, visible } from "../format";
import { to } from "../links";
import { Differences, OtherFilter, useTokens } from "../group_parts";
import { Facts, Loading, Source, Text } from "../parts";
import { growth, useLoaded } from "../use";
import type { Shown } from "./index";

/** compared: tokens of the best sample, to show the differences to it in place of the response. */
function Sibling({ run, sample, best, compared }: { run: string; sample: GroupSample; best: boolean; compared: Tokens | null }) {
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
      {compared && compared.head.sample !== sample.sample ? (
        <Differences run={run} sample={sample.sample} best={compared} />
      ) : (
        <Text text={sample.text} label={`response of ${sample.sample}`} />
      )}
    </article>
  );
}

interface Members {
  run: string;
  samples: GroupSample[];
}

function Siblings({ run, samples, compared }: Members & { compared: Tokens | null }) {
  const most = Math.max(...samples.map((sample) => sample.reward ?? -Infinity));
  return (
    <div class="siblings">
      {samples.map((sample) => (
        <Sibling key={sample.sample} run={run} sample={sample} best={sample.reward !== null && sample.reward === most} compared={compared} />
      ))}
    </div>
  );
}

function ComparedSiblings({ run, samples, best }: Members & { best: string }) {
  const tokens = useTokens(run, best);
  return <Loading of={tokens}>{(value) => <Siblings run={run} samples={samples} compared={value} />}</Loading>;
}

/** The first of the samples with the highest reward. */
function bestOf(samples: GroupSample[]): string | null {
  const graded = samples.filter((sample) => sample.reward !== null && sample.length > 0);
  return graded.reduce<GroupSample | null>((best, sample) => (best && best.reward! >= sample.reward! ? best : sample), null)?.sample ?? null;
}

function Verdict({ decision }: { decision: Decision }) {
  const figures = Object.entries(decision.figures).map(([name, value]) => `${name} ${figure(value)}`);
  return (
    <Facts
      of={[
        ["decision", <strong>{decision.accepted ? "accepted" : `rejected: ${decision.cause}`}</strong>],
        ["reason", cell(decision.reason)],
        ["filter", visible(decision.filter)],
        ["figures", visible(figures.join(", ")) || "–"],
        ["decided, UTC", ofNano(decision.at)],
      ]}
    />
  );
}

export function Group({ run = "", id = "" }: Shown) {
  const { query, route } = useLocation();
  const show = (changed: { filter?: string; diff?: string }) =>
    route(to(run, "groups", id, { filter: query.filter ?? "", diff: query.diff ?? "", ...changed }), true);
  const key = `group ${run} ${id} ${growth()}`;
  const page = useLoaded(key, (stop) => getJson<GroupPage>(runPath(run, "groups", id), stop));
  return (
    <Loading of={page}>
      {({ group, filters, source }) => {
        const best = bestOf(group.samples);
        const differing = query.diff === "1" && best !== null;
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
            {filters.length > 0 && <OtherFilter run={run} group={group.group} filters={filters} name={query.filter ?? ""} onChoose={(filter) => show({ filter })} />}
            <h2>Prompt</h2>
            <Text text={group.prompt?.text ?? ""} label="prompt" />
            <h2>{group.samples.length} samples</h2>
            {best !== null && group.samples.length > 1 && (
              <p class="tools">
                <button aria-pressed={differing} onClick={() => show({ diff: differing ? "" : "1" })}>{differing ? "show the responses" : "show the differences to the best"}</button>
                {differing && <span class="quiet">token by token, to {visible(best)}: <ins class="plus-4">only here</ins> <del class="minus-4">only in the best</del></span>}
              </p>
            )}
            {differing ? <ComparedSiblings run={run} samples={group.samples} best={best} /> : <Siblings run={run} samples={group.samples} compared={null} />}
            <Source source={source} />
          </>
        );
      }}
    </Loading>
  );
}

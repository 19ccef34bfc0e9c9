// A rollout: the conversation beside its exact tokens.
import { useLocation } from "preact-iso";
import { getJson, getTokens, runPath, type Tokens } from "../api";
import type { RolloutPage, SampleView, Turn } from "../answers";
import { cell, figure, json, ofNano, visible } from "../format";
import { to } from "../links";
import { Facts, Loading, Source, Text } from "../parts";
import { Replayed } from "../replay";
import { OVERLAYS, type OverlayName, TokenList } from "../tokens";
import { growth, useLoaded } from "../use";
import { Wire } from "../wire";
import type { Shown } from "./index";

function TurnPart({ turn, depth }: { turn: Turn; depth: number }) {
  return (
    <article class={`turn depth-${Math.min(depth, 6)}`}>
      <h3>
        turn {turn.turn}: {turn.role}
        <span class="quiet"> {turn.extends === null ? "a root" : `extends turn ${turn.extends}`}, {figure(turn.seconds)} s, {turn.tokens} tokens</span>
      </h3>
      {turn.call && <Text text={`${turn.call.name}(${JSON.stringify(turn.call.arguments)})`} label={`call of turn ${turn.turn}`} />}
      {turn.role === "tool" ? (
        <Text text={turn.error || JSON.stringify(turn.result, null, 1)} label={`result of turn ${turn.turn}`} />
      ) : (
        <Text text={turn.text} label={`text of turn ${turn.turn}`} />
      )}
    </article>
  );
}

/** Depth of each turn below its root. A turn names one before it. */
function depths(turns: Turn[]): Map<number, number> {
  const found = new Map<number, number>();
  for (const turn of turns) found.set(turn.turn, turn.extends === null ? 0 : (found.get(turn.extends) ?? -1) + 1);
  return found;
}

function Conversation({ sample }: { sample: SampleView }) {
  const below = depths(sample.turns);
  return (
    <section aria-label="conversation">
      <h2>Prompt</h2>
      <Text text={sample.prompt} label="prompt" />
      {sample.turns.length > 0 && <h2>{sample.turns.length} turns</h2>}
      {sample.turns.map((turn) => <TurnPart key={turn.turn} turn={turn} depth={below.get(turn.turn) ?? 0} />)}
      <h2>Response</h2>
      <Text text={sample.text} label="response" />
    </section>
  );
}

function Head({ run, sample, siblings }: { run: string; sample: SampleView; siblings: string[] }) {
  const reward = sample.reward && "value" in sample.reward ? sample.reward.value : null;
  const failure = sample.reward && "message" in sample.reward ? String(sample.reward.message) : null;
  return (
    <>
      <h1>Rollout {visible(sample.sample)}</h1>
      <nav class="tools" aria-label="samples of the group">
        <a href={to(run, "groups", sample.group)}>group {visible(sample.group)}</a>
        <a href={to(run, "versions", "", { sample: sample.sample })}>what it touched</a>
        {siblings.map((id) => (
          <a key={id} href={to(run, "rollouts", id)} aria-current={id === sample.sample ? "page" : undefined}>
            {visible(id.startsWith(sample.group) ? id.slice(sample.group.length + 1) : id)}
          </a>
        ))}
      </nav>
      <Facts
        of={[
          ["reward", reward],
          ["label", json(sample.label)],
          ["stop", cell(sample.stop)],
          ["tokens", sample.length],
          ["versions", cell(sample.versions)],
          ["decision", sample.decision ? (sample.decision.accepted ? "accepted" : `rejected: ${sample.decision.cause}`) : "–"],
          ["step", sample.step === null ? "–" : <a href={to(run, "steps", String(sample.step))}>{sample.step}</a>],
          ["made version", sample.version === null ? "–" : <a href={to(run, "versions", String(sample.version))}>{sample.version}</a>],
          ["engine", cell(sample.engine)],
          ["attempts", sample.requests.length],
          ["completed, UTC", ofNano(sample.completed_at)],
        ]}
      />
      {failure && <p class="error">not graded: {visible(failure)}</p>}
      {sample.removed && <p class="error">The rollout-sample filter removed it from training: no token is trained.</p>}
    </>
  );
}

export function Rollout({ run = "", id = "" }: Shown) {
  const { query, route } = useLocation();
  const at = `${run} ${id} ${growth()}`;
  const page = useLoaded(`rollout ${at}`, (stop) => getJson<RolloutPage>(runPath(run, "rollouts", id), stop));
  const tokens = useLoaded(`tokens ${at}`, (stop) => getTokens(run, id, stop));
  const overlay: OverlayName = query.overlay in OVERLAYS ? (query.overlay as OverlayName) : "log_prob";
  return (
    <Loading of={page}>
      {({ sample, siblings, source }) => (
        <>
          <Head run={run} sample={sample} siblings={siblings} />
          <div class="beside">
            <Conversation sample={sample} />
            <section aria-label="tokens">
              <h2>
                Tokens{" "}
                <select
                  aria-label="overlay"
                  value={overlay}
                  onChange={(event) => route(to(run, "rollouts", id, { overlay: event.currentTarget.value }), true)}
                >
                  {Object.entries(OVERLAYS).map(([name, { title }]) => <option key={name} value={name}>by {title}</option>)}
                </select>
              </h2>
              <Loading of={tokens}>
                {(value: Tokens) => (
                  <Replayed key={`${run} ${id}`} run={run} sample={sample.sample} count={value.head.n}>
                    {(shown) => <TokenList tokens={value} overlay={overlay} shown={shown} />}
                  </Replayed>
                )}
              </Loading>
            </section>
          </div>
          <Wire key={`${run} ${id}`} run={run} sample={sample.sample} />
          <Source source={source} />
        </>
      )}
    </Loading>
  );
}

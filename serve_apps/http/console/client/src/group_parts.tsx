// Parts of a group's page: the tokens in which samples differ from the best one, and another filter.
import { getJson, getTokens, runPath, type Tokens } from "./api";
import type { TriedFilter } from "./answers";
import { diff, type Part } from "./diff";
import { cell, visible } from "./format";
import { Copied, Facts, Loading } from "./parts";
import { shown } from "./tokens";
import { growth, useLoaded } from "./use";

/** Equal tokens that are shown before and after a difference. */
const AROUND = 12;
/** Tokens of a sample that are shown. */
const MOST = 2000;

export function useTokens(run: string, sample: string) {
  return useLoaded(`tokens ${run} ${sample} ${growth()}`, (stop) => getTokens(run, sample, stop));
}

interface Piece extends Part {
  /** Number of equal tokens that are left out before this piece. */
  skipped: number;
}

/** Parts without the middle of long equal ones, up to `MOST` tokens; and the number of differing tokens left out. */
function pieces(parts: Part[]): { shown: Piece[]; left: number } {
  const kept: Piece[] = [];
  let room = MOST;
  let left = 0;
  parts.forEach((part, at) => {
    const before = at === 0 ? 0 : AROUND;
    const after = at === parts.length - 1 ? 0 : AROUND;
    const long = part.kind === "same" && part.to - part.from > before + after + 1;
    const cut: Piece[] = long
      ? [{ ...part, to: part.from + before, skipped: 0 }, { ...part, from: part.to - after, skipped: part.to - part.from - before - after }]
      : [{ ...part, skipped: 0 }];
    for (const piece of cut) {
      const fits = Math.min(piece.to - piece.from, room);
      room -= fits;
      if (part.kind !== "same") left += piece.to - piece.from - fits;
      if (fits > 0 || piece.skipped > 0) kept.push({ ...piece, to: piece.from + fits });
    }
  });
  return { shown: kept, left };
}

function Word({ tokens, at, kind }: { tokens: Tokens; at: number; kind: Part["kind"] }) {
  const text = shown(tokens.head.texts[at], tokens.ids[at]);
  if (kind === "same") return <span>{text}</span>;
  return kind === "only" ? <ins class="plus-4">{text}</ins> : <del class="minus-4">{text}</del>;
}

function Compared({ best, tokens }: { best: Tokens; tokens: Tokens }) {
  const { parts, whole } = diff(best.ids, tokens.ids);
  const count = (kind: Part["kind"]) => parts.reduce((sum, part) => sum + (part.kind === kind ? part.to - part.from : 0), 0);
  const { shown: kept, left } = pieces(parts);
  return (
    <>
      <p class="quiet">
        Tokens only here: {count("only")}, only in the best: {count("gone")}, equal: {count("same")}
        {whole ? "" : "; too many differences for the shortest list, so the middle is shown as replaced"}
      </p>
      <p class="tokens differences" tabIndex={0} role="group" aria-label="differences to the best" dir="ltr">
        {kept.map((piece) => {
          const from = piece.kind === "gone" ? best : tokens;
          return [
            piece.skipped > 0 && <em class="quiet"> … {piece.skipped.toLocaleString("en")} equal tokens … </em>,
            ...Array.from({ length: piece.to - piece.from }, (_, at) => <Word key={`${piece.kind} ${piece.from + at}`} tokens={from} at={piece.from + at} kind={piece.kind} />),
          ];
        })}
      </p>
      {left > 0 && <p class="quiet">{left.toLocaleString("en")} more differing tokens are not shown.</p>}
    </>
  );
}

/** The tokens of a sample beside those of the best one. */
export function Differences({ run, sample, best }: { run: string; sample: string; best: Tokens }) {
  const tokens = useTokens(run, sample);
  return <Loading of={tokens}>{(value) => <Compared best={best} tokens={value} />}</Loading>;
}

function Trial({ run, group, name }: { run: string; group: string; name: string }) {
  const path = runPath(run, "filters", name, group);
  const tried = useLoaded(path, (stop) => getJson<TriedFilter>(path, stop));
  return (
    <Loading of={tried}>
      {({ trial, command }) => (
        <>
          <Facts
            of={[
              ["decision", <strong>{trial.accepted ? "accepted" : "rejected"}</strong>],
              ["compared with the recorded one", trial.differs ? <strong class="differs">differs</strong> : "the same"],
              ["reason", cell(trial.reason)],
            ]}
          />
          {trial.beyond && <p class="quiet">The group was rejected whatever a filter decides: a rollout failed, or it was too stale.</p>}
          {trial.fallback && <p class="quiet">This filter drops the group only while others fill the step, so it decides as recorded.</p>}
          {command && <Copied title="command" text={command} />}
        </>
      )}
    </Loading>
  );
}

/** Choice of another filter. name: the one in the URL; empty for none. */
export function OtherFilter({ run, group, filters, name, onChoose }: { run: string; group: string; filters: string[]; name: string; onChoose: (name: string) => void }) {
  return (
    <section aria-label="another filter">
      <p class="tools">
        <label>
          another filter{" "}
          <select value={name} onChange={(event) => onChoose(event.currentTarget.value)}>
            <option value="">–</option>
            {filters.map((each) => <option key={each} value={each}>{visible(each)}</option>)}
          </select>
        </label>
        <span class="quiet">computed with the recorded rewards; nothing is changed</span>
      </p>
      {name && <Trial key={name} run={run} group={group} name={name} />}
    </section>
  );
}

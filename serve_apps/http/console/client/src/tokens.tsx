// The exact tokens of a response, coloured by one of their figures.
import { useState } from "preact/hooks";
import type { Tokens } from "./api";
import { figure, visible } from "./format";
import { VirtualRows } from "./virtual";

/** Tokens of one row of the virtual list. */
const ROW = 64;
/** A log-prob from which a token has the strongest colour [nats]. */
const LOW = -6;
/** A difference of two log-probs from which a token has the strongest colour [nats]. */
const WIDE = 2;

interface Overlay {
  title: string;
  /** Class of a token's colour; empty for none. */
  of: (tokens: Tokens, at: number) => string;
  legend: (tokens: Tokens) => string;
}

function shade(name: string, share: number): string {
  const level = Math.min(8, Math.max(0, Math.round(share * 8)));
  return level === 0 ? "" : `${name}-${level}`;
}

/** The advantage of a token; null if the sample's tokens have different ones, which the log does not hold singly. */
function advantage({ head, trained }: Tokens, at: number): number | null {
  const known = head.advantage;
  return known && known.first === known.last ? (trained[at] ? known.first : 0) : null;
}

/** Log-prob of the teacher less that of the engine [nats]; null without either. */
function teacherGap({ teacher, versions, logProbs }: Tokens, at: number): number | null {
  return teacher && versions[at] >= 0 ? teacher[at] - logProbs[at] : null;
}

export const OVERLAYS = {
  log_prob: {
    title: "log-prob",
    of: ({ logProbs, versions }, at) => (versions[at] < 0 ? "" : shade("low", logProbs[at] / LOW)),
    legend: () => `log-prob at generation: no colour is 0, the strongest ${LOW} nats or less`,
  },
  gap: {
    title: "trainer-engine gap",
    of: () => "",
    legend: ({ head }) =>
      "The log has no log-prob of the trainer by token, so no token is coloured. " +
      (head.step_gap === null
        ? "Its step has no mean either: it is not trained on, or the trainer computed none."
        : `Mean absolute difference over its step: ${figure(head.step_gap)} nats (train_rollout_logprob_abs_diff).`),
  },
  teacher: {
    title: "teacher-engine gap",
    of: (tokens, at) => {
      const value = teacherGap(tokens, at) ?? 0;
      return shade(value < 0 ? "minus" : "plus", Math.abs(value) / WIDE);
    },
    legend: ({ teacher }) =>
      teacher ? `log-prob of the teacher less that of the engine: the strongest colour is ${WIDE} nats` : "The log has no teacher's log-probs of this sample.",
  },
  advantage: {
    title: "advantage",
    of: (tokens, at) => {
      const value = advantage(tokens, at) ?? 0;
      return shade(value < 0 ? "minus" : "plus", Math.abs(value) / 2);
    },
    legend: ({ head }) => {
      const known = head.advantage;
      if (!known) return "no advantage: the sample is not trained on, or its estimator needs more than the log holds";
      const left = known.left_out.length ? `, without ${known.left_out.join(" and ")}` : "";
      if (known.first === known.last) return `${known.estimator}: ${figure(known.first)} at each trained token${left}`;
      return `${known.estimator}: ${figure(known.first)} at the first trained token, ${figure(known.last)} at the last${left}; not shown by token`;
    },
  },
  version: {
    title: "weight version",
    of: ({ versions }, at) => (versions[at] < 0 ? "" : `kind-${versions[at] % 6}`),
    legend: ({ versions }) => {
      const every = [...new Set(versions)].sort((a, b) => a - b);
      return every.map((version) => (version < 0 ? "no engine" : `v${version}`)).join(", ") || "no tokens";
    },
  },
  mask: {
    title: "loss mask",
    of: ({ trained }, at) => (trained[at] ? "plus-4" : "minus-2"),
    legend: ({ trained, head }) => `${trained.reduce((sum, one) => sum + one, 0)} of ${head.n} tokens are trained on`,
  },
} satisfies Record<string, Overlay>;
export type OverlayName = keyof typeof OVERLAYS;

export function shown(text: string | null, id: number): string {
  return text === null ? `#${id}` : visible(text).replace(/\n/g, "⏎\n") || "∅";
}

function About({ tokens, at }: { tokens: Tokens; at: number | null }) {
  if (at === null) return <p class="about quiet">Point at a token, or move with the arrow keys, to see its figures.</p>;
  const value = advantage(tokens, at);
  const apart = teacherGap(tokens, at);
  const facts = [
    `token ${at}`,
    `id ${tokens.ids[at]}`,
    JSON.stringify(visible(tokens.head.texts[at] ?? "")),
    tokens.versions[at] < 0 ? "no engine" : `v${tokens.versions[at]}, log-prob ${figure(tokens.logProbs[at])}`,
    tokens.trained[at] ? "trained on" : "not trained on",
    ...(value === null ? [] : [`advantage ${figure(value)}`]),
    ...(apart === null ? [] : [`teacher less engine ${figure(apart)}`]),
  ];
  return <p class="about">{facts.join(" · ")}</p>;
}

/** shown: number of tokens that have appeared in a replay; the others keep their places. */
export function TokenList({ tokens, overlay, shown: upTo }: { tokens: Tokens; overlay: OverlayName; shown: number }) {
  const [at, setAt] = useState<number | null>(null);
  const { of, legend } = OVERLAYS[overlay];
  const point = (event: Event) => {
    const index = (event.target as HTMLElement).dataset?.at;
    if (index !== undefined) setAt(Number(index));
  };
  const move = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined || tokens.head.n === 0) return;
    event.preventDefault();
    setAt(Math.min(tokens.head.n - 1, Math.max(0, at === null ? 0 : at + step)));
  };
  const row = (index: number) => {
    const begin = index * ROW;
    const count = Math.min(ROW, tokens.head.n - begin);
    return (
      <p class="tokens" dir="ltr">
        {Array.from({ length: count }, (_, offset) => {
          const here = begin + offset;
          const chosen = (here === at ? " chosen" : "") + (here < upTo ? "" : " later");
          return <span key={here} data-at={here} class={of(tokens, here) + chosen}>{shown(tokens.head.texts[here], tokens.ids[here])}</span>;
        })}
      </p>
    );
  };
  return (
    <div onMouseOver={point} onClick={point} onKeyDown={move}>
      <p class="quiet">{legend(tokens)}</p>
      {tokens.head.no_texts && <p class="quiet" role="note">Tokens are shown by their ids: {visible(tokens.head.no_texts)}.</p>}
      <About tokens={tokens} at={at} />
      <VirtualRows count={Math.ceil(tokens.head.n / ROW)} height={60} measured most={420} label="tokens" row={row} />
    </div>
  );
}

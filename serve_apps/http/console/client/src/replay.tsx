// A replay: tokens appear at the times at which the log got them.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { getJson, runPath } from "./api";
import type { RolloutTimes } from "./answers";
import { Loading } from "./parts";
import { useLoaded } from "./use";

const SPEEDS = [0.25, 0.5, 1, 2, 4, 16, 64];
/** Milliseconds between two changes if the reader wants less motion: then tokens appear by chunks. */
const CALM = 1000;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

interface Pace {
  /** Seconds from the beginning to the begin and the end of each chunk; the ends ascend. */
  begins: number[];
  ends: number[];
  /** Index after the last token of each chunk. */
  counts: number[];
}

/** Times of the chunks; the first one begins when the engine began, or at the request if that is unknown. */
function paceOf({ chunks, begun_at, requested_at }: RolloutTimes): Pace {
  const pace: Pace = { begins: [], ends: [], counts: [] };
  if (!chunks.length) return pace;
  const zero = Math.min(chunks[0].since ?? begun_at ?? requested_at ?? chunks[0].at, chunks[0].at);
  let latest = zero;
  for (const { at, since, end } of chunks) {
    const before = latest; // clocks of two writers may differ
    latest = Math.max(latest, at);
    pace.begins.push((Math.min(latest, Math.max(before, since ?? before)) - zero) * 1e-9);
    pace.ends.push((latest - zero) * 1e-9);
    pace.counts.push(end);
  }
  return pace;
}

/** Number of tokens at a time. Those of a chunk are spread evenly from its begin to its end. */
function countAt({ begins, ends, counts }: Pace, seconds: number, whole: boolean): number {
  const at = ends.findIndex((end) => end > seconds);
  if (at < 0) return counts.at(-1) ?? 0;
  const first = at ? counts[at - 1] : 0;
  if (whole || seconds <= begins[at]) return first;
  return first + Math.floor(((counts[at] - first) * (seconds - begins[at])) / (ends[at] - begins[at]));
}

function explained({ chunks, turns, by_turn, begun_at }: RolloutTimes): string {
  if (by_turn) return "Tokens of a turn are spread evenly over the seconds of its chunks; tokens between two turns appear at once, when the next turn begins.";
  const made = `The log got ${chunks.length === 1 ? "all tokens at once" : `${chunks.length} chunks`}; the tokens of a chunk are spread evenly over the time since ${chunks.length === 1 ? "the beginning" : "the chunk before"}. `;
  const begun = begun_at === null ? "The time begins with the request: when the engine began is not known. " : "";
  return made + begun + (turns ? "The rollout was made in turns, but their tokens are not exactly those of the response, so their pauses are not shown." : "");
}

function useClock(end: number) {
  const [seconds, setSeconds] = useState(0);
  const [speed, setSpeed] = useState(1);
  const [playing, setPlaying] = useState(false);
  useEffect(() => {
    if (!playing) return;
    let before = performance.now();
    let frame = 0;
    const advance = () => {
      const now = performance.now();
      const passed = ((now - before) / 1000) * speed;
      before = now;
      setSeconds((at) => Math.min(end, at + passed));
      if (!calm.matches) frame = requestAnimationFrame(advance);
    };
    const timer = calm.matches ? setInterval(advance, CALM) : undefined;
    if (!calm.matches) frame = requestAnimationFrame(advance);
    return () => (clearInterval(timer), cancelAnimationFrame(frame));
  }, [playing, speed, end]);
  useEffect(() => {
    if (playing && seconds >= end) setPlaying(false);
  }, [playing, seconds, end]);
  return { seconds, setSeconds, speed, setSpeed, playing, setPlaying };
}

function Player({ times, children }: { times: RolloutTimes; children: (shown: number) => ComponentChildren }) {
  const pace = paceOf(times);
  const end = pace.ends.at(-1) ?? 0;
  const { seconds, setSeconds, speed, setSpeed, playing, setPlaying } = useClock(end);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => box.current?.querySelector("button")?.focus(), []);
  const shown = countAt(pace, seconds, calm.matches);
  const all = pace.counts.at(-1) ?? 0;
  const play = () => {
    if (seconds >= end) setSeconds(0);
    setPlaying(!playing);
  };
  const chunk = (forward: boolean) => {
    const near = 1e-6;
    setSeconds(forward ? (pace.ends.find((each) => each > seconds + near) ?? end) : (pace.ends.findLast((each) => each < seconds - near) ?? 0));
  };
  return (
    <>
      <div class="tools replay" role="group" aria-label="replay" ref={box}>
        <button onClick={play}>{playing ? "pause" : "play"}</button>
        <button aria-label="the chunk before" onClick={() => chunk(false)}>← chunk</button>
        <button aria-label="the next chunk" onClick={() => chunk(true)}>chunk →</button>
        <select aria-label="speed" value={speed} onChange={(event) => setSpeed(Number(event.currentTarget.value))}>
          {SPEEDS.map((each) => <option key={each} value={each}>{each}×</option>)}
        </select>
        <input
          type="range" aria-label="time of the replay" min={0} max={end} step="any" value={seconds}
          aria-valuetext={`${seconds.toFixed(1)} of ${end.toFixed(1)} seconds, ${shown} tokens`}
          onInput={(event) => setSeconds(Number(event.currentTarget.value))}
        />
        <output>{seconds.toFixed(2)} of {end.toFixed(2)} s, {shown} of {all} tokens</output>
      </div>
      <p class="quiet">{explained(times)}</p>
      {children(shown)}
    </>
  );
}

function Loaded({ run, sample, children }: { run: string; sample: string; children: (shown: number) => ComponentChildren }) {
  const path = runPath(run, "times", sample);
  const times = useLoaded(path, (stop) => getJson<RolloutTimes>(path, stop));
  return <Loading of={times}>{(value) => <Player times={value}>{children}</Player>}</Loading>;
}

/** All tokens, or on request a replay of them. */
export function Replayed({ run, sample, count, children }: { run: string; sample: string; count: number; children: (shown: number) => ComponentChildren }) {
  const [on, setOn] = useState(false);
  return (
    <>
      <p class="tools">
        <button aria-pressed={on} disabled={count === 0} onClick={() => setOn(!on)}>{on ? "end the replay" : "replay"}</button>
      </p>
      {on ? <Loaded run={run} sample={sample}>{children}</Loaded> : children(count)}
    </>
  );
}

// A slider over the positions of a log, and a field for a position in words.
import { useEffect, useRef, useState } from "preact/hooks";

/** Milliseconds without a move after which a slider's position is asked for. */
const REST = 120;

interface Slider {
  label: string;
  value: number;
  end: number;
  /** Positions at which steps were committed, ascending. */
  commits: number[];
  onMove: (position: number) => void;
}

export function PositionSlider({ label, value, end, commits, onMove }: Slider) {
  const [at, setAt] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => setAt(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const move = (position: number) => {
    const next = Math.min(end, Math.max(1, position));
    setAt(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onMove(next), REST);
  };
  const before = commits.findLast((commit) => commit < at);
  const after = commits.find((commit) => commit > at);
  const keys = (event: KeyboardEvent) => {
    const next = { PageUp: after ?? end, PageDown: before ?? 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    move(next);
  };
  const button = (text: string, name: string, next: number | undefined) => (
    <button aria-label={`${text}, ${label}: ${name}`} title={name} disabled={next === undefined || next < 1 || next > end} onClick={() => move(next!)}>{text}</button>
  );
  return (
    <div class="position">
      <label>
        <span>{label}</span>
        <input
          type="range" min={1} max={end} step={1} value={at} aria-valuetext={`position ${at} of ${end}`}
          onInput={(event) => move(Number(event.currentTarget.value))} onKeyDown={keys}
        />
      </label>
      <output>{at.toLocaleString("en")} of {end.toLocaleString("en")}</output>
      {button("← step", "the commit of a step before", before)}
      {button("−1", "one event back", at - 1)}
      {button("+1", "one event on", at + 1)}
      {button("step →", "the next commit of a step", after)}
    </div>
  );
}

export function PositionField({ label, name, onGo }: { label: string; name: string; onGo: (text: string) => void }) {
  const send = (event: SubmitEvent) => {
    event.preventDefault();
    const text = String(new FormData(event.target as HTMLFormElement).get(name) ?? "").trim();
    if (text) onGo(text);
  };
  return (
    <form onSubmit={send}>
      <input name={name} size={22} maxLength={64} aria-label={`${label} in words`} placeholder="12345, step:3, +30s, a time" />{" "}
      <button>go</button>
    </form>
  );
}

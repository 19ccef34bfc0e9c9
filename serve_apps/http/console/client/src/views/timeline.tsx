// Who did what when, and what each rollout waited for. The URL has the window.
import { useLocation } from "preact-iso";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Frame, getTimeline, runPath, save } from "../api";
import { moment, visible } from "../format";
import { to } from "../links";
import { Loading, Source, Table } from "../parts";
import { Lanes, Legend } from "../timeline/canvas";
import { fits } from "../timeline/layout";
import { type Span, duration, limited, zoomed } from "../timeline/span";
import { growth, useLoaded } from "../use";
import type { Shown } from "./index";

/** Most cells of a lane that the server gives. */
const MOST_PARTS = 4000;
/** Pause after the last move before the URL gets the window, and before one is loaded [ms]. */
const SETTLED = 250;
const SOON = 60;
/** Idle times in the table. */
const LISTED = 20;

/** The window of the URL; null if it has none. */
function spanOf(query: Record<string, string>): Span | null {
  const [begin, end] = [Number(query.from ?? NaN), Number(query.to ?? NaN)];
  return Number.isFinite(begin) && Number.isFinite(end) && begin < end ? { begin, end } : null;
}

function queryOf(span: Span | null, width: number): URLSearchParams {
  if (!span) return new URLSearchParams({ parts: String(Math.min(MOST_PARTS, width)) });
  const room = span.end - span.begin;
  const parts = Math.min(MOST_PARTS, 3 * width);
  return new URLSearchParams({ from: String(span.begin - room), to: String(span.end + room), parts: String(parts) });
}

export function Timeline({ run = "" }: Shown) {
  const { query, route } = useLocation();
  const [span, setSpan] = useState<Span | null>(spanOf(query));
  const [width, setWidth] = useState(1000);
  const [asked, setAsked] = useState(() => queryOf(spanOf(query), 1000).toString());
  const frame = useLoaded(`timeline ${run} ${asked} ${growth()}`, (stop) => getTimeline(run, new URLSearchParams(asked), stop));
  const shown = frame.value;
  const whole = shown ? limited({ begin: -Infinity, end: Infinity }, shown.head.length) : null;
  const window = span ?? whole;
  const timers = useRef({ asked: 0, url: 0 });
  useEffect(() => {
    if (!shown || !window || fits(shown, window, width)) return;
    clearTimeout(timers.current.asked);
    timers.current.asked = setTimeout(() => setAsked(queryOf(window, width).toString()), SOON);
  }, [shown, window?.begin, window?.end, width]);
  const move = (next: Span) => {
    setSpan(next);
    clearTimeout(timers.current.url);
    timers.current.url = setTimeout(() => route(to(run, "timeline", "", { from: next.begin.toFixed(6), to: next.end.toFixed(6) }), true), SETTLED);
  };
  useEffect(() => () => clearTimeout(timers.current.url), []);
  return (
    <Loading of={frame}>
      {(value: Frame) => (
        <>
          <h1>
            Timeline <span class="quiet">{window && `${duration(window.end - window.begin)} from ${moment(value.head.origin * 1e-6 + window.begin)} UTC`}</span>
          </h1>
          <Tools run={run} window={window!} whole={whole!} move={move} />
          <Legend works={value.head.works} />
          <Lanes frame={value} span={window!} onSpan={move} onWidth={setWidth} onOpen={(bar) => open(run, value, bar, route)} />
          <IdleList frame={value} window={window!} move={move} />
          <Source source={value.head.source} />
        </>
      )}
    </Loading>
  );
}

function open(run: string, { head, bar_step }: Frame, bar: number, route: (url: string) => void): void {
  if (head.samples[bar]) route(to(run, "rollouts", head.samples[bar]));
  else if (head.groups[bar]) route(to(run, "groups", head.groups[bar]));
  else if (bar_step[bar] >= 0) route(to(run, "steps", String(bar_step[bar])));
}

function Tools({ run, window, whole, move }: { run: string; window: Span; whole: Span; move: (span: Span) => void }) {
  const [state, setState] = useState("");
  const zoom = (factor: number) => move(zoomed(window, factor, (window.begin + window.end) / 2, whole.end));
  const words = new URLSearchParams({ from: String(window.begin), to: String(window.end) });
  const download = () => {
    setState("writing …");
    save(`${runPath(run, "timeline", "trace")}?${words}`, `${run}-timeline.json`).then(() => setState(""), (error: Error) => setState(visible(error.message)));
  };
  return (
    <p class="tools">
      <button onClick={() => zoom(1 / 2)}>zoom in</button>
      <button onClick={() => zoom(2)}>zoom out</button>
      <button onClick={() => move(whole)}>whole run</button>
      <button onClick={download}>export to Perfetto</button>
      <span role="status">{state}</span>
      <span class="quiet">Drag moves, the wheel zooms. A click opens the rollout, group or step of a bar.</span>
    </p>
  );
}

function IdleList({ frame, window, move }: { frame: Frame; window: Span; move: (span: Span) => void }) {
  const inside = frame.head.idle.filter((gap) => gap.end > window.begin && gap.start < window.end);
  const longest = [...inside].sort((a, b) => b.end - b.start - (a.end - a.start)).slice(0, LISTED);
  const room = (gap: Span) => (gap.end - gap.begin) * 0.5;
  return (
    <>
      <h2>Longest idle times in the window</h2>
      <div class="idle" tabIndex={0} role="group" aria-label="idle times">
        <Table
          rows={longest}
          label="longest idle times"
          columns={[
            { name: "worker", of: (gap) => visible(frame.head.lanes[gap.lane].title) },
            { name: "length", number: true, of: (gap) => duration(gap.end - gap.start) },
            {
              name: "from",
              number: true,
              of: (gap) => {
                const span = { begin: gap.start, end: gap.end };
                return <button onClick={() => move({ begin: span.begin - room(span), end: span.end + room(span) })}>{gap.start.toFixed(3)} s</button>;
              },
            },
            { name: "waited for", of: (gap) => visible(gap.waited_for) },
          ]}
        />
      </div>
    </>
  );
}

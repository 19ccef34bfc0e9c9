// Curves by uPlot, in the colours of the theme.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { figure } from "./format";
import { theme } from "./theme";

/** Null is a gap; a line goes on over undefined, where another run has a point. */
export type Values = (number | null | undefined)[];

export interface Curve {
  label: string;
  values: Values;
  /** Name of the colour in the style sheet, without `--`. */
  colour: string;
  /** The area between a `lower` curve and the `upper` one after it is filled. */
  kind: keyof typeof WIDTHS;
  /** Lengths of lines and gaps [px], in place of those of the kind. */
  dash?: number[];
  /** How the line looks, for a screen reader. */
  look?: string;
  /** Called in place of the chart's `onPick` with a point of this curve. */
  onPick?: (index: number) => void;
}

interface Chart {
  title: string;
  x: number[];
  /** The last one is what a screen reader hears of. */
  curves: Curve[];
  /** Called with the index of a point that is clicked, or chosen by Enter. */
  onPick: (index: number) => void;
  /** Called with the ends of what was selected with the mouse; without it, the chart shows that part. */
  onRange?: (low: number, high: number) => void;
}

const HEIGHT = 210;
const WIDTHS = { line: 1.75, dashed: 1.75, dotted: 1, lower: 0, upper: 0 };
const DASHES: Partial<Record<keyof typeof WIDTHS, number[]>> = { dashed: [5, 4], dotted: [1, 3] };

export function Chart({ title, x, curves, onPick, onRange }: Chart) {
  const box = useRef<HTMLDivElement>(null);
  const readout = useRef<HTMLParagraphElement>(null);
  const plot = useRef<uPlot | null>(null);
  const pick = useRef(onPick);
  pick.current = onPick;
  const range = useRef(onRange);
  range.current = onRange;
  const keyed = useRef(-1);
  const look = theme.value;
  useEffect(() => {
    const target = box.current!;
    const data = [x, ...curves.map((curve) => curve.values)] as uPlot.AlignedData;
    const made = new uPlot(options(title, target.clientWidth, curves, (text) => (readout.current!.textContent = text), range), data, target);
    keyed.current = -1;
    made.over.addEventListener("click", () => {
      const [at, curve] = curves.some((one) => one.onPick) ? nearest(made, curves) : [made.cursor.idx, undefined];
      if (at != null) (curve?.onPick ?? pick.current)(at);
    });
    const sized = new ResizeObserver(() => made.setSize({ width: target.clientWidth, height: HEIGHT }));
    sized.observe(target);
    plot.current = made;
    return () => {
      sized.disconnect();
      made.destroy();
    };
  }, [title, x, curves, look]);
  const keys = (event: KeyboardEvent) => plot.current && onKey(event, plot.current, curves, keyed, pick.current);
  return (
    <div
      class="chart"
      tabIndex={0}
      role="group"
      aria-label={`${title}: ${[...curves].reverse().filter((one, at) => !at || one.onPick).map(named).join("; ")}. Left and right move along the steps, ${
        curves.some((one) => one.onPick) ? "up and down choose a run, " : ""
      }Enter opens the rows.`}
      onKeyDown={keys}
    >
      <div ref={box} />
      <p class="readout" ref={readout} aria-live="polite" />
    </div>
  );
}

/** The index and the curve of the point that is nearest to the cursor. */
function nearest(plot: uPlot, curves: Curve[]): [number | null, Curve | undefined] {
  const { left = 0, top = 0 } = plot.cursor;
  let [best, found, of]: [number, number | null, Curve | undefined] = [Infinity, null, undefined];
  for (const curve of curves) {
    curve.values.forEach((value, at) => {
      if (value == null) return;
      const far = Math.hypot(plot.valToPos(plot.data[0][at], "x") - left, plot.valToPos(value, "y") - top);
      if (far < best) [best, found, of] = [far, at, curve];
    });
  }
  return [found, of];
}

/** Moves the cursor along the points of a run. keyed: the index of the curve of a further run; -1 for the chart's own. */
function onKey(event: KeyboardEvent, plot: uPlot, curves: Curve[], keyed: { current: number }, pick: (at: number) => void): void {
  const runs = [-1, ...curves.flatMap((curve, at) => (curve.onPick ? [at] : []))];
  const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const turn = runs.length > 1 ? { ArrowUp: -1, ArrowDown: 1 }[event.key] : undefined;
  if (turn !== undefined) keyed.current = runs[(runs.indexOf(keyed.current) + turn + runs.length) % runs.length];
  const own = keyed.current < 0 ? curves.filter((curve) => !curve.onPick) : [curves[keyed.current]];
  const points = [...plot.data[0].keys()].filter((at) => own.some((curve) => curve.values[at] !== undefined));
  const cursor = plot.cursor.idx ?? points[0];
  const at = points.length ? points.reduce((best, one) => (Math.abs(one - cursor) < Math.abs(best - cursor) ? one : best)) : null;
  if (event.key === "Enter" && at !== null) (curves[keyed.current]?.onPick ?? pick)(at);
  if (move === undefined && turn === undefined) return;
  event.preventDefault();
  if (at === null) return;
  const next = points[Math.min(points.length - 1, Math.max(0, points.indexOf(at) + (move ?? 0)))];
  const value = keyed.current < 0 ? null : own[0].values[next];
  const top = value == null ? plot.bbox.height / devicePixelRatio / 2 : plot.valToPos(value, "y");
  plot.setCursor({ left: plot.valToPos(plot.data[0][next], "x"), top });
}

/** What a screen reader hears of a curve: a further run with its name and look. */
function named({ label, look, values, onPick }: Curve): string {
  return onPick ? `${label}, ${look}: ${summary(values)}` : summary(values);
}

function summary(values: Values): string {
  const there = values.filter((value) => value != null);
  return there.length ? `from ${figure(there[0])} to ${figure(there[there.length - 1])}` : "no values";
}

/** Ends of the y axis: a curve without change gets some room. */
function rangeOf(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  const room = low === high ? Math.abs(low) || 1 : (high - low) * 0.05;
  return [low - room, high + room];
}

/** The figures at the cursor as one line. */
function figuresAt(plot: uPlot, curves: Curve[]): string {
  const at = plot.cursor.idx;
  if (at == null) return "";
  const parts = curves.flatMap(({ label, values: { [at]: value } }) => (value === undefined ? [] : [`${label} ${value === null ? "–" : figure(value)}`]));
  return [`at ${figure(plot.data[0][at])}`, ...parts].join(" · ");
}

function options(title: string, width: number, curves: Curve[], read: (text: string) => void, range: { current: Chart["onRange"] }): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
  const bands = curves.flatMap((curve, at) =>
    curve.kind === "lower" ? [{ series: [at + 2, at + 1] as [number, number], fill: colour(`${curve.colour}-fill`) }] : [],
  );
  return {
    title,
    width,
    height: HEIGHT,
    scales: { x: { time: false }, y: { range: (_, low, high) => rangeOf(low, high) } },
    hooks: {
      setCursor: [(plot) => read(figuresAt(plot, curves))],
      setSelect: [
        (plot) => {
          const { left, width } = plot.select;
          if (width > 0) range.current?.(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
        },
      ],
    },
    axes: [axis, { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => figure(tick)) }],
    legend: { show: false },
    cursor: { drag: { x: true, y: false, setScale: !range.current } },
    bands,
    series: [
      {},
      ...curves.map((curve) => ({
        label: curve.label,
        stroke: colour(curve.colour),
        width: WIDTHS[curve.kind],
        dash: curve.dash ?? DASHES[curve.kind],
        points: { show: curve.values.filter((value) => value != null).length < 2 },
      })),
    ],
  };
}

// Curves by uPlot, in the colours of the theme.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { figure } from "./format";
import { theme } from "./theme";

export type Values = (number | null)[];

export interface Curve {
  label: string;
  values: Values;
  /** Name of the colour in the style sheet, without `--`. */
  colour: string;
  /** The area between a `lower` curve and the `upper` one after it is filled. */
  kind: keyof typeof WIDTHS;
}

interface Chart {
  title: string;
  x: number[];
  /** The last one is what a screen reader hears of. */
  curves: Curve[];
  /** Called with the index of a point that is clicked, or chosen by Enter. */
  onPick: (index: number) => void;
}

const HEIGHT = 210;
const WIDTHS = { line: 1.75, dashed: 1.75, dotted: 1, lower: 0, upper: 0 };
const DASHES: Partial<Record<keyof typeof WIDTHS, number[]>> = { dashed: [5, 4], dotted: [1, 3] };

export function Chart({ title, x, curves, onPick }: Chart) {
  const box = useRef<HTMLDivElement>(null);
  const readout = useRef<HTMLParagraphElement>(null);
  const plot = useRef<uPlot | null>(null);
  const pick = useRef(onPick);
  pick.current = onPick;
  const look = theme.value;
  useEffect(() => {
    const target = box.current!;
    const data = [x, ...curves.map((curve) => curve.values)] as uPlot.AlignedData;
    const made = new uPlot(options(title, target.clientWidth, curves, (text) => (readout.current!.textContent = text)), data, target);
    made.over.addEventListener("click", () => made.cursor.idx != null && pick.current(made.cursor.idx));
    const sized = new ResizeObserver(() => made.setSize({ width: target.clientWidth, height: HEIGHT }));
    sized.observe(target);
    plot.current = made;
    return () => {
      sized.disconnect();
      made.destroy();
    };
  }, [title, x, curves, look]);
  const keys = (event: KeyboardEvent) => plot.current && onKey(event, plot.current, x.length, (at) => pick.current(at));
  return (
    <div
      class="chart"
      tabIndex={0}
      role="group"
      aria-label={`${title}: ${summary(curves[curves.length - 1].values)}. Left and right move along the steps, Enter opens the rows.`}
      onKeyDown={keys}
    >
      <div ref={box} />
      <p class="readout" ref={readout} aria-live="polite" />
    </div>
  );
}

function onKey(event: KeyboardEvent, plot: uPlot, count: number, pick: (at: number) => void): void {
  const at = plot.cursor.idx ?? 0;
  const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.key === "Enter") pick(at);
  if (move === undefined) return;
  event.preventDefault();
  const next = Math.min(count - 1, Math.max(0, at + move));
  plot.setCursor({ left: plot.valToPos(plot.data[0][next], "x"), top: plot.bbox.height / devicePixelRatio / 2 });
}

function summary(values: Values): string {
  const there = values.filter((value) => value !== null);
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
  const parts = curves.map((curve) => `${curve.label} ${curve.values[at] === null ? "–" : figure(curve.values[at])}`);
  return [`at ${figure(plot.data[0][at])}`, ...parts].join(" · ");
}

function options(title: string, width: number, curves: Curve[], read: (text: string) => void): uPlot.Options {
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
    hooks: { setCursor: [(plot) => read(figuresAt(plot, curves))] },
    axes: [axis, { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => figure(tick)) }],
    legend: { show: false },
    cursor: { drag: { x: true, y: false } },
    bands,
    series: [
      {},
      ...curves.map((curve) => ({
        label: curve.label,
        stroke: colour(curve.colour),
        width: WIDTHS[curve.kind],
        dash: DASHES[curve.kind],
        points: { show: curve.values.length < 2 },
      })),
    ],
  };
}

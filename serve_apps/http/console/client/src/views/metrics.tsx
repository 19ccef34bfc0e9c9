// Curves by step of one or several runs. A point opens its samples.
import { useLocation } from "preact-iso";
import { useMemo } from "preact/hooks";
import { getJson } from "../api";
import type { Band, Metrics as Answer } from "../answers";
import { Chart, type Curve, type Values } from "../chart";
import { visible } from "../format";
import { to } from "../links";
import { type Further, LineKey, Runs, type Wish, requestOf, useFurther, wishOf } from "../metrics_runs";
import { AXES, type Aligned, type Axis, align, placed, placesOf } from "../overlay";
import { Loading, Source } from "../parts";
import { growth, useLoaded } from "../use";
import type { Shown } from "./index";

interface Drawn {
  run: string;
  own: Answer;
  further: Further[];
  by: Axis;
  /** Opens the rows of a step of a run. */
  open: (run: string, step: number, view: "samples" | "steps") => void;
  /** Opens a part of the axis. */
  zoom: (low: number, high: number) => void;
}

/** What one chart draws of a run: a part of its metrics, and the index of the step of each point. */
type Part = { at: number[] | null } | undefined;

/** Puts the points of each run's part on one axis. The page's own run is the first. */
function aligned({ own, further, by }: Drawn, parts: Part[]): Aligned {
  return align([own, ...further.map(({ metrics }) => metrics)].map((metrics, run) => (parts[run] ? placesOf(metrics, by, parts[run].at) : [])));
}

/** Opens the rows of a point. */
function opener({ run, own, further, open }: Drawn, parts: Part[], on: Aligned, view: "samples" | "steps") {
  const every = [{ name: run, metrics: own }, ...further];
  return (index: number) => (point: number) => {
    const at = on.at[index][point];
    if (at !== undefined) open(every[index].name, every[index].metrics.steps[parts[index]?.at?.[at] ?? at], view);
  };
}

function curvesOfBand(band: Band, all: boolean, at: Aligned["at"][number]): Curve[] {
  const [kind, colour, label] = all ? [band.all, "second", "all"] : [band.trained, "first", "trained"];
  return [
    { label: `${label}: p10`, values: placed(kind.p10, at), colour, kind: "lower" },
    { label: "p90", values: placed(kind.p90, at), colour, kind: "upper" },
    { label: "p50", values: placed(kind.p50, at), colour, kind: "dotted" },
    { label: "mean", values: placed(kind.mean, at), colour, kind: all ? "dashed" : "line" },
  ];
}

/** A line of each further run. */
function linesOf(further: Further[], on: Aligned, values: (Values | undefined)[], pick: (index: number) => (point: number) => void): Curve[] {
  return further.map(({ name, look: { colour, dash, title } }, index): Curve => {
    const at = index + 1;
    return { label: visible(name), values: placed(values[at], on.at[at]), colour, kind: "line", dash, look: title, onPick: pick(at) };
  });
}

function BandChart({ band, drawn }: { band: Band; drawn: Drawn }) {
  const [x, curves, pick] = useMemo(() => {
    const bands = [band, ...drawn.further.map(({ metrics }) => metrics.bands.find(({ name }) => name === band.name))];
    const on = aligned(drawn, bands);
    const opens = opener(drawn, bands, on, "samples");
    const means = linesOf(drawn.further, on, bands.map((one) => one?.trained.mean), opens);
    return [on.x, [...means, ...(drawn.further.length ? [] : curvesOfBand(band, true, on.at[0])), ...curvesOfBand(band, false, on.at[0])], opens(0)];
  }, [band, drawn]);
  const title = `${band.title}${band.unit ? ` [${band.unit}]` : ""}: mean, p10, p50, p90`;
  return <Chart title={title} x={x} curves={curves} onPick={pick} onRange={drawn.zoom} />;
}

function LineChart({ name, unit, drawn }: { name: string; unit: string; drawn: Drawn }) {
  const [x, curves, pick] = useMemo(() => {
    const lines = [drawn.own, ...drawn.further.map(({ metrics }) => metrics)].map((metrics) => metrics.lines.find((line) => line.name === name));
    const on = aligned(drawn, lines);
    const opens = opener(drawn, lines, on, "steps");
    const first: Curve = { label: visible(name), values: placed(lines[0]?.values, on.at[0]), colour: "first", kind: "line" };
    return [on.x, [...linesOf(drawn.further, on, lines.map((line) => line?.values), opens), first], opens(0)];
  }, [name, drawn]);
  return <Chart title={visible(unit ? `${name} [${unit}]` : name)} x={x} curves={curves} onPick={pick} onRange={drawn.zoom} />;
}

function Charts({ run, own, further, wish }: { run: string; own: Answer; further: Further[]; wish: Wish }) {
  const { route } = useLocation();
  const drawn = useMemo((): Drawn => {
    const open: Drawn["open"] = (name, step, view) =>
      route(view === "steps" ? to(name, "steps", String(step)) : to(name, "samples", "", { filter: `step:eq:${step}` }));
    const zoom: Drawn["zoom"] = (low, high) => {
      const [from, end] = wish.by === "seconds" ? [low, high] : [Math.ceil(low), Math.floor(high)];
      if (end > from) route(urlOf(run, { ...wish, from: figureOf(from), to: figureOf(end) }));
    };
    return { run, own, further, by: wish.by, open, zoom };
  }, [run, own, further, JSON.stringify(wish)]);
  const lines = new Map([own, ...further.map(({ metrics }) => metrics)].flatMap(({ lines }) => lines.map(({ name, unit }) => [name, unit])));
  return (
    <div class="charts">
      {own.bands.map((band) => <BandChart key={band.name} band={band} drawn={drawn} />)}
      {[...lines].map(([name, unit]) => <LineChart key={name} name={name} unit={unit} drawn={drawn} />)}
    </div>
  );
}

const figureOf = (value: number) => String(Math.round(value * 1000) / 1000);

function urlOf(run: string, { by, with: names, from, to: end }: Wish): string {
  return to(run, "metrics", "", { by: by === "steps" ? "" : by, with: names, from, to: end });
}

/** The part of the axis that is drawn, and how many of its steps. */
function Part({ wish, metrics, change }: { wish: Wish; metrics: Answer[]; change: (next: Wish) => void }) {
  const send = (event: SubmitEvent) => {
    event.preventDefault();
    const words = new FormData(event.target as HTMLFormElement);
    change({ ...wish, from: String(words.get("from")), to: String(words.get("to")) });
  };
  const longest = metrics.reduce((most, one) => (one.total > most.total ? one : most));
  const each = longest.total / longest.points;
  return (
    <>
      <form class="tools" onSubmit={send} key={`${wish.by} ${wish.from} ${wish.to}`}>
        <label>from <input name="from" type="number" step="any" defaultValue={wish.from} /></label>
        <label>to <input name="to" type="number" step="any" defaultValue={wish.to} /></label>
        <button>show</button>
        {(wish.from || wish.to) && <button type="button" onClick={() => change({ ...wish, from: "", to: "" })}>all steps</button>}
        <span class="quiet">or select a part of a chart with the mouse</span>
      </form>
      {each > 1 && (
        <p class="quiet" role="note">
          {longest.total.toLocaleString("en")} steps are too many to draw. Each point is one step with its exact figures, and represents about{" "}
          {Math.ceil(each).toLocaleString("en")} steps: of each part of the run, the lowest and the highest value of each curve are drawn. A part of up to{" "}
          {longest.points.toLocaleString("en")} steps is drawn whole.
        </p>
      )}
    </>
  );
}

function Legend({ several }: { several: boolean }) {
  return (
    <p class="quiet">
      <LineKey /> trained samples
      {!several && <>, <span class="key second" /> all completed samples</>}; the line is the mean, the dotted line p50, the area p10 to p90.{" "}
      {several && "The lines of further runs are the means over their trained samples. "}A click on a point, or Enter, opens its samples; below the
      bands, the step. {several ? "With several runs, the nearest point opens." : "A sample that no step trains on counts at the step that its oldest weights were made for."}
    </p>
  );
}

export function Metrics({ run = "" }: Shown) {
  const { url, route } = useLocation();
  const wish = wishOf(url, run);
  const path = requestOf(run, wish);
  const answer = useLoaded(`metrics ${path} ${growth()}`, (stop) => getJson<Answer>(path, stop));
  const further = useFurther(wish);
  const change = (next: Wish) => route(urlOf(run, next));
  return (
    <Loading of={answer}>
      {(metrics) => (
        <>
          <h1>Metrics</h1>
          <p class="tools">
            <label>
              by{" "}
              <select value={wish.by} onChange={(event) => change({ ...wish, by: event.currentTarget.value as Axis, from: "", to: "" })}>
                {Object.entries(AXES).map(([name, title]) => <option key={name} value={name}>{title}</option>)}
              </select>
            </label>
            {wish.by !== "steps" && <span class="quiet">Steps that are not committed are left out.</span>}
          </p>
          <Runs run={run} wish={wish} failed={further.failed} change={change} />
          <Legend several={further.there.length > 0} />
          <Part wish={wish} metrics={[metrics, ...further.there.map((one) => one.metrics)]} change={change} />
          <Charts run={run} own={metrics} further={further.there} wish={wish} />
          <Source title="SQL and command of the bands" source={metrics.source} />
          <Source title="SQL and command of the trainer's figures" source={metrics.steps_source} />
        </>
      )}
    </Loading>
  );
}

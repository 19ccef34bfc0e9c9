// Curves by step of one or several runs. A point opens its samples.
import { useLocation } from "preact-iso";
import { useMemo } from "preact/hooks";
import { getJson, runPath } from "../api";
import type { Band, Metrics as Answer } from "../answers";
import { Chart, type Curve, type Values } from "../chart";
import { visible } from "../format";
import { to } from "../links";
import { type Further, Runs, type Wish, useFurther, wishOf } from "../metrics_runs";
import { AXES, type Aligned, type Axis, align, placed, placesOf } from "../overlay";
import { Loading, Source } from "../parts";
import { growth, useLoaded } from "../use";
import type { Shown } from "./index";

interface Drawn {
  aligned: Aligned;
  further: Further[];
  /** Opens the rows of a step of a run, where 0 is the page's own. */
  open: (run: number, step: number, view: "samples" | "steps") => void;
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
function linesOf({ aligned, further, open }: Drawn, view: "samples" | "steps", valuesOf: (metrics: Answer) => Values | undefined): Curve[] {
  return further.map(({ name, metrics, colour }, index): Curve => {
    const at = aligned.at[index + 1];
    const onPick = (point: number) => open(index + 1, at[point]!, view);
    return { label: visible(name), values: placed(valuesOf(metrics), at), colour, kind: "line", onPick };
  });
}

function BandChart({ band, drawn }: { band: Band; drawn: Drawn }) {
  const curves = useMemo(() => {
    const { aligned: { at: [at] }, further } = drawn;
    const means = linesOf(drawn, "samples", (metrics) => metrics.bands.find(({ name }) => name === band.name)?.trained.mean);
    return [...means, ...(further.length ? [] : curvesOfBand(band, true, at)), ...curvesOfBand(band, false, at)];
  }, [band, drawn]);
  const title = `${band.title}${band.unit ? ` [${band.unit}]` : ""}: mean, p10, p50, p90`;
  return <Chart title={title} x={drawn.aligned.x} curves={curves} onPick={(point) => drawn.open(0, drawn.aligned.at[0][point]!, "samples")} />;
}

function LineChart({ name, unit, own, drawn }: { name: string; unit: string; own: Answer; drawn: Drawn }) {
  const curves = useMemo(() => {
    const valuesOf = (metrics: Answer) => metrics.lines.find((line) => line.name === name)?.values;
    const first: Curve = { label: visible(name), values: placed(valuesOf(own), drawn.aligned.at[0]), colour: "first", kind: "line" };
    return [...linesOf(drawn, "steps", valuesOf), first];
  }, [name, own, drawn]);
  const title = visible(unit ? `${name} [${unit}]` : name);
  return <Chart title={title} x={drawn.aligned.x} curves={curves} onPick={(point) => drawn.open(0, drawn.aligned.at[0][point]!, "steps")} />;
}

function Charts({ run, own, further, by }: { run: string; own: Answer; further: Further[]; by: Axis }) {
  const { route } = useLocation();
  const drawn = useMemo((): Drawn => {
    const every = [{ name: run, metrics: own }, ...further];
    const open: Drawn["open"] = (index, at, view) => {
      const { name, metrics } = every[index];
      const step = String(metrics.steps[at]);
      route(view === "steps" ? to(name, "steps", step) : to(name, "samples", "", { filter: `step:eq:${step}` }));
    };
    return { aligned: align(every.map(({ metrics }) => placesOf(metrics, by))), further, open };
  }, [run, own, further, by]);
  const lines = new Map([own, ...further.map(({ metrics }) => metrics)].flatMap(({ lines }) => lines.map(({ name, unit }) => [name, unit])));
  return (
    <div class="charts">
      {own.bands.map((band) => <BandChart key={band.name} band={band} drawn={drawn} />)}
      {[...lines].map(([name, unit]) => <LineChart key={name} name={name} unit={unit} own={own} drawn={drawn} />)}
    </div>
  );
}

function Legend({ several }: { several: boolean }) {
  return (
    <p class="quiet">
      <span class="key" /> trained samples
      {!several && <>, <span class="key second" /> all completed samples</>}; the line is the mean, the dotted line p50, the area p10 to p90.{" "}
      {several && "The lines of further runs are the means over their trained samples. "}A click on a point, or Enter, opens its samples; below the
      bands, the step. {several ? "With several runs, the nearest point opens." : "A sample that no step trains on counts at the step that its oldest weights were made for."}
    </p>
  );
}

export function Metrics({ run = "" }: Shown) {
  const { url, route } = useLocation();
  const wish = wishOf(url, run);
  const answer = useLoaded(`metrics ${run} ${growth()}`, (stop) => getJson<Answer>(runPath(run, "metrics"), stop));
  const further = useFurther(wish.with);
  const change = (next: Wish) => route(to(run, "metrics", "", { by: next.by === "steps" ? "" : next.by, with: next.with }));
  return (
    <Loading of={answer}>
      {(metrics) => (
        <>
          <h1>Metrics</h1>
          <p class="tools">
            <label>
              by{" "}
              <select value={wish.by} onChange={(event) => change({ ...wish, by: event.currentTarget.value as Axis })}>
                {Object.entries(AXES).map(([name, title]) => <option key={name} value={name}>{title}</option>)}
              </select>
            </label>
            {wish.by !== "steps" && <span class="quiet">Steps that are not committed are left out.</span>}
          </p>
          <Runs run={run} wish={wish} failed={further.failed} change={change} />
          <Legend several={further.there.length > 0} />
          <Charts run={run} own={metrics} further={further.there} by={wish.by} />
          <Source title="SQL and command of the bands" source={metrics.source} />
          <Source title="SQL and command of the trainer's figures" source={metrics.steps_source} />
        </>
      )}
    </Loading>
  );
}

// Curves by step. A point opens its samples.
import { useLocation } from "preact-iso";
import { useMemo } from "preact/hooks";
import { getJson, runPath } from "../api";
import type { Band, Line, Metrics as Answer } from "../answers";
import { Chart, type Curve } from "../chart";
import { visible } from "../format";
import { to } from "../links";
import { Loading, Source } from "../parts";
import { growth, useLoaded } from "../use";
import type { Shown } from "./index";

const AXES = { steps: "step", trained_tokens: "tokens trained on", seconds: "seconds since the first request" } as const;
type Axis = keyof typeof AXES;

function curvesOfBand(band: Band, all: boolean): Curve[] {
  const [kind, colour, label] = all ? [band.all, "second", "all"] : [band.trained, "first", "trained"];
  return [
    { label: `${label}: p10`, values: kind.p10, colour, kind: "lower" },
    { label: "p90", values: kind.p90, colour, kind: "upper" },
    { label: "p50", values: kind.p50, colour, kind: "dotted" },
    { label: "mean", values: kind.mean, colour, kind: all ? "dashed" : "line" },
  ];
}

function BandChart({ band, x, open }: { band: Band; x: number[]; open: (at: number) => void }) {
  const curves = useMemo(() => [...curvesOfBand(band, true), ...curvesOfBand(band, false)], [band]);
  const title = `${band.title}${band.unit ? ` [${band.unit}]` : ""}: mean, p10, p50, p90`;
  return <Chart title={title} x={x} curves={curves} onPick={open} />;
}

function LineChart({ line, x, open }: { line: Line; x: number[]; open: (at: number) => void }) {
  const curves = useMemo(() => [{ label: visible(line.name), values: line.values, colour: "first", kind: "line" as const }], [line]);
  return <Chart title={visible(line.unit ? `${line.name} [${line.unit}]` : line.name)} x={x} curves={curves} onPick={open} />;
}

export function Metrics({ run = "" }: Shown) {
  const { query, route } = useLocation();
  const answer = useLoaded(`metrics ${run} ${growth()}`, (stop) => getJson<Answer>(runPath(run, "metrics"), stop));
  const by: Axis = query.by in AXES ? (query.by as Axis) : "steps";
  const value = answer.value;
  const x = useMemo(() => (value ? value[by].map((at, index) => at ?? index) : []), [value, by]);
  const samples = (at: number) => route(to(run, "samples", "", { filter: `step:eq:${value!.steps[at]}` }));
  const step = (at: number) => route(to(run, "steps", String(value!.steps[at])));
  return (
    <Loading of={answer}>
      {(metrics) => (
        <>
          <h1>Metrics</h1>
          <p class="tools">
            <label>
              by{" "}
              <select value={by} onChange={(event) => route(to(run, "metrics", "", { by: event.currentTarget.value }))}>
                {Object.entries(AXES).map(([name, title]) => <option key={name} value={name}>{title}</option>)}
              </select>
            </label>
            <span class="quiet">
              <span class="key" /> trained samples, <span class="key second" /> all completed samples; the line is the
              mean, the dotted line p50, the area p10 to p90. A click on a point, or Enter, opens its samples; below the bands, the step. A sample that no
              step trains on counts at the step that its oldest weights were made for.
            </span>
          </p>
          <div class="charts">
            {metrics.bands.map((band) => <BandChart key={band.name} band={band} x={x} open={samples} />)}
            {metrics.lines.map((line) => <LineChart key={line.name} line={line} x={x} open={step} />)}
          </div>
          <Source title="SQL and command of the bands" source={metrics.source} />
          <Source title="SQL and command of the trainer's figures" source={metrics.steps_source} />
        </>
      )}
    </Loading>
  );
}

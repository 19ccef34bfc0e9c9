// Points of several runs on one x axis.
import type { Metrics } from "./answers";
import type { Values } from "./chart";

export const AXES = { steps: "step", trained_tokens: "tokens trained on", seconds: "seconds since the first request" } as const;
export type Axis = keyof typeof AXES;
/** Most runs of a picture, with the first. */
export const MOST_RUNS = 5;

export interface Aligned {
  /** Every x of a run, ascending. */
  x: number[];
  /** By run and index of `x`: the index of its point; undefined where it has no point. */
  at: (number | undefined)[][];
}

/** Where a run's points stand on an axis; null for a step that is not on it: only a committed one has a time, and adds tokens.
 *  at: the index of each point's step; null if every step has one. */
export function placesOf(metrics: Pick<Metrics, Axis>, by: Axis, at: number[] | null): Values {
  return at ? at.map((step) => metrics[by][step]) : metrics[by];
}

/** Puts the points of all runs on one axis. */
export function align(places: Values[]): Aligned {
  const x = [...new Set(places.flat())].filter((one) => typeof one === "number").sort((a, b) => a - b);
  const index = new Map(x.map((one, at) => [one, at]));
  const at = places.map((own) => {
    const found = new Array<number | undefined>(x.length).fill(undefined);
    own.forEach((one, step) => typeof one === "number" && (found[index.get(one)!] = step));
    return found;
  });
  return { x, at };
}

/** A run's values on the common axis: undefined where the run has no point, so that a line goes on there. */
export function placed(values: Values | undefined, at: (number | undefined)[]): Values {
  return at.map((step) => (step === undefined || !values ? undefined : values[step]));
}

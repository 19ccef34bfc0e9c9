// Where lanes and their intervals are on the canvas.
import type { Frame } from "../api";
import type { LaneHead } from "../answers";
import type { Span } from "./span";

/** Height of the axis above the lanes [px]. */
export const AXIS = 24;
const GAP = 6;
const LOW = 26;
const HIGH = 150;
/** Narrowest bar [px]. */
export const NARROW = 1;

export interface Place {
  top: number;
  height: number;
  lane: LaneHead;
}

/** Lanes from the top. A lane's height does not change with the window, so that nothing moves. */
export function placesOf(lanes: LaneHead[]): Place[] {
  let top = AXIS;
  return lanes.map((lane) => {
    const height = Math.min(HIGH, Math.max(LOW, lane.depth * 6));
    const place = { top, height, lane };
    top += height + GAP;
    return place;
  });
}

export function heightOf(places: Place[]): number {
  const last = places[places.length - 1];
  return last ? last.top + last.height + GAP : AXIS;
}

/** Top and height of a track [px]. */
export function trackOf({ top, height, lane }: Place, track: number): [number, number] {
  const each = height / lane.depth;
  return [top + Math.min(track, lane.depth - 1) * each, Math.max(1, each > 3 ? each - 1 : each)];
}

/** Index of the bar at a time of a track; without a track, of all tracks: those that it has there. */
export function barsAt(frame: Frame, lane: number, at: number, slack: number, track?: number): number[] {
  const found: number[] = [];
  for (let bar = 0; bar < frame.bar_lane.length; bar++) {
    if (frame.bar_lane[bar] !== lane || frame.bar_start[bar] > at + slack || frame.bar_end[bar] < at - slack) continue;
    if (track === undefined || frame.bar_track[bar] === track) found.push(bar);
  }
  return found;
}

/** Mean number of intervals at a time of a merged lane, by kind of work. */
export function meansAt(frame: Frame, lane: number, at: number): [string, number][] {
  const { begin, end, parts, works } = frame.head;
  const cell = Math.floor(((at - begin) / (end - begin)) * parts);
  const found: [string, number][] = [];
  for (let index = 0; index < frame.cell_lane.length; index++) {
    if (frame.cell_lane[index] === lane && frame.cell_at[index] === cell) found.push([works[frame.cell_work[index]], frame.cell_mean[index]]);
  }
  return found;
}

/** Whether a frame is fit to draw a window: it has the whole of it, at a resolution that is near enough. */
export function fits({ head }: Frame, span: Span, width: number): boolean {
  const here = (span.end - span.begin) / width;
  const there = (head.end - head.begin) / head.parts;
  const whole = head.begin <= Math.max(span.begin, 0) && head.end >= Math.min(span.end, head.length);
  return whole && there < here * 1.3 && there > here / 1.9;
}

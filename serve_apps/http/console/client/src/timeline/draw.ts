// Draws a timeline on a canvas. What is merged is painted once per frame, and moved with the window.
import type { Frame } from "../api";
import { visible } from "../format";
import { AXIS, NARROW, type Place, trackOf } from "./layout";
import { type Span, duration, ticks } from "./span";

const COLOURS: Record<string, [light: string, dark: string]> = {
  queue: ["#b9bfc6", "#515a63"],
  reward: ["#c9b28a", "#6d5c39"],
  verdict: ["#a9c5a0", "#4a6a42"],
  batch: ["#c0aecb", "#5f4d6b"],
  load: ["#d9534f", "#e06c66"],
  tool: ["#c07a1c", "#d39a4a"],
  suspended: ["#8c8c8c", "#8c8c8c"],
  failed: ["#b3261e", "#ff8a80"],
  grade: ["#a8620a", "#e0a04c"],
  train: ["#1b6e3c", "#5fb986"],
  checkpoint: ["#7a4fb0", "#b08be0"],
  archive: ["#4b5563", "#9aa4ad"],
};
const OTHER: [string, string] = ["#2a6fc4", "#6fa8ee"];
/** Colours of generation by weight version, in turn. */
const VERSIONS: [string, string][] = [["#2a6fc4", "#6fa8ee"], ["#6fa3dc", "#3f75b5"], ["#2b8a99", "#58b4c2"], ["#8ab6c9", "#396a7d"]];

export interface Look {
  dark: boolean;
  ink: string;
  quiet: string;
  line: string;
  ground: string;
}

export function lookOf(dark: boolean): Look {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string) => style.getPropertyValue(`--${name}`).trim();
  return { dark, ink: of("ink"), quiet: of("quiet"), line: of("line"), ground: of("raised") };
}

export function colourOf(work: string, version: number, dark: boolean): string {
  const pair = work === "generate" && version >= 0 ? VERSIONS[version % VERSIONS.length] : (COLOURS[work] ?? OTHER);
  return pair[dark ? 1 : 0];
}

export type Painted = Map<number, HTMLCanvasElement>;

/** Paints each merged lane of a frame: a column per cell, its kinds of work upon each other. */
export function painted(frame: Frame, places: Place[], dark: boolean): Painted {
  const images: Painted = new Map();
  const { lanes, parts, works } = frame.head;
  lanes.forEach((lane, index) => {
    if (!lane.dense) return;
    const image = document.createElement("canvas");
    [image.width, image.height] = [parts, places[index].height];
    images.set(index, image);
  });
  const full = new Map([...images.keys()].map((lane) => [lane, new Float32Array(parts)]));
  for (let at = 0; at < frame.cell_lane.length; at++) {
    const lane = frame.cell_lane[at];
    const image = images.get(lane)!;
    const [below, cell, mean] = [full.get(lane)!, frame.cell_at[at], frame.cell_mean[at]];
    const scale = image.height / lanes[lane].depth;
    const brush = image.getContext("2d")!;
    brush.fillStyle = colourOf(works[frame.cell_work[at]], -1, dark);
    const height = Math.max(1, mean * scale);
    brush.fillRect(cell, image.height - below[cell] - height, 1, height);
    below[cell] += height;
  }
  return images;
}

interface Shown {
  frame: Frame;
  images: Painted;
  places: Place[];
  span: Span;
  width: number;
  height: number;
  look: Look;
  /** Index of the lane and the time of the cursor. */
  cursor: { lane: number; at: number } | null;
  /** Sample or group whose bars stand out. */
  chosen: string;
}

export function draw(brush: CanvasRenderingContext2D, shown: Shown): void {
  const { frame, images, places, span, width, height, look, cursor } = shown;
  const scale = width / (span.end - span.begin);
  const x = (at: number) => (at - span.begin) * scale;
  brush.fillStyle = look.ground;
  brush.fillRect(0, 0, width, height);
  drawAxis(brush, shown, x);
  brush.imageSmoothingEnabled = false;
  const { begin, end } = frame.head;
  for (const [lane, image] of images) brush.drawImage(image, x(begin), places[lane].top, (end - begin) * scale, places[lane].height);
  drawBars(brush, shown, x);
  drawIdle(brush, shown, x);
  brush.fillStyle = look.line;
  for (const { top, height: tall } of places) brush.fillRect(0, top + tall + 2, width, 1);
  if (cursor) {
    brush.fillStyle = look.quiet;
    brush.fillRect(x(cursor.at), AXIS, 1, height - AXIS);
    brush.strokeStyle = look.quiet;
    const place = places[cursor.lane];
    if (place) brush.strokeRect(0.5, place.top - 1.5, width - 1, place.height + 3);
  }
}

function drawAxis(brush: CanvasRenderingContext2D, { span, width, height, look }: Shown, x: (at: number) => number): void {
  const times = ticks(span, Math.max(2, Math.floor(width / 110)));
  const digits = Math.max(0, -Math.floor(Math.log10((times[1] ?? 1) - (times[0] ?? 0) || 1)));
  brush.font = "11px system-ui, sans-serif";
  for (const at of times) {
    brush.fillStyle = look.line;
    brush.fillRect(Math.round(x(at)), AXIS - 6, 1, height - AXIS + 6);
    brush.fillStyle = look.quiet;
    brush.fillText(`${at.toFixed(digits)} s`, x(at) + 4, AXIS - 9);
  }
}

function drawBars(brush: CanvasRenderingContext2D, { frame, places, width, look, chosen }: Shown, x: (at: number) => number): void {
  const { works, samples, groups } = frame.head;
  for (let bar = 0; bar < frame.bar_lane.length; bar++) {
    const left = x(frame.bar_start[bar]);
    const right = x(frame.bar_end[bar]);
    if (right < 0 || left > width) continue;
    const [top, tall] = trackOf(places[frame.bar_lane[bar]], frame.bar_track[bar]);
    const from = Math.max(left, -2);
    const wide = Math.max(NARROW, Math.min(right, width + 2) - from);
    brush.fillStyle = colourOf(works[frame.bar_work[bar]], frame.bar_version[bar], look.dark);
    brush.fillRect(from, top, wide > 3 ? wide - 0.5 : wide, tall);
    if (chosen && (samples[bar] === chosen || groups[bar] === chosen)) {
      brush.strokeStyle = look.ink;
      brush.strokeRect(from, top, wide, tall);
    }
    if (tall >= 10 && wide > 40) inside(brush, nameOf(frame, bar), from, top + tall / 2, wide, "#fff");
  }
}

function drawIdle(brush: CanvasRenderingContext2D, { frame, places, span, width, look }: Shown, x: (at: number) => number): void {
  for (const idle of frame.head.idle) {
    if (idle.end < span.begin || idle.start > span.end) continue;
    const { top, height } = places[idle.lane];
    const left = Math.max(x(idle.start), 0);
    const wide = Math.min(x(idle.end), width) - left;
    brush.strokeStyle = look.line;
    brush.strokeRect(left + 0.5, top + 2.5, Math.max(0, wide - 1), height - 5);
    if (wide > 44) inside(brush, `idle ${duration(idle.end - idle.start)}: ${visible(idle.waited_for)}`, left, top + height / 2, wide, look.quiet);
  }
}

/** A text that is cut where its box ends. */
function inside(brush: CanvasRenderingContext2D, text: string, left: number, middle: number, wide: number, colour: string): void {
  const most = Math.floor((wide - 8) / 6);
  if (most < 3) return;
  brush.fillStyle = colour;
  brush.fillText(text.length > most ? `${text.slice(0, most - 1)}…` : text, left + 4, middle + 4);
}

/** A bar's short name. */
export function nameOf({ head, bar_work, bar_step, bar_version }: Frame, bar: number): string {
  const [work, step, version] = [head.works[bar_work[bar]], bar_step[bar], bar_version[bar]];
  if (step >= 0 && work === "train") return `train step ${step}`;
  const about = visible(head.samples[bar] || head.groups[bar]);
  return [work, version >= 0 ? `v${version}` : "", about].filter(Boolean).join(" ");
}

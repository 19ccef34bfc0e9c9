// The canvas of a timeline: pan and zoom by mouse and keyboard, the cursor, and what is under it as text.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Frame } from "../api";
import { visible } from "../format";
import { theme } from "../theme";
import { colourOf, draw, lookOf, nameOf, painted } from "./draw";
import { AXIS, type Place, barsAt, heightOf, meansAt, placesOf } from "./layout";
import { type Span, duration, moved, zoomed } from "./span";

interface Canvas {
  frame: Frame;
  span: Span;
  /** Called when the window moves. */
  onSpan: (span: Span) => void;
  onWidth: (width: number) => void;
  /** Opens a bar's rollout, group or step. */
  onOpen: (bar: number) => void;
}

interface Cursor {
  lane: number;
  at: number;
  track?: number;
}

/** Bars under the cursor that are listed. */
const LISTED = 12;
const PAN = 0.15;
const ZOOM = 1.4;
/** A press that moves less than this is a click [px]. */
const CLICK = 4;

export function Lanes({ frame, span, onSpan, onWidth, onOpen }: Canvas) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [cursor, setCursor] = useState<Cursor | null>(null);
  const places = placesOf(frame.head.lanes);
  const height = heightOf(places);
  const [dark, length] = [theme.value === "dark", frame.head.length];
  useEffect(() => {
    const sized = new ResizeObserver(([entry]) => {
      const wide = Math.max(100, Math.floor(entry.contentRect.width));
      setWidth(wide);
      onWidth(wide);
    });
    sized.observe(canvas.current!.parentElement!);
    return () => sized.disconnect();
  }, []);
  const images = useKept([frame, dark], () => painted(frame, places, dark));
  useLayoutEffect(() => {
    if (!width) return;
    const target = canvas.current!;
    const ratio = devicePixelRatio || 1;
    const [wide, tall] = [Math.floor(width * ratio), Math.floor(height * ratio)];
    if (target.width !== wide || target.height !== tall) [target.width, target.height] = [wide, tall];
    const brush = target.getContext("2d", { alpha: false })!;
    brush.setTransform(ratio, 0, 0, ratio, 0, 0);
    const chosen = cursor ? about(frame, under(frame, cursor, span, width)[0]) : "";
    draw(brush, { frame, images, places, span, width, height, look: lookOf(dark), cursor, chosen });
  }, [frame, span, width, height, dark, cursor]);
  usePointer(canvas, { span, width, length, places, onSpan, setCursor, onPick: (at) => pick(at) });
  const pick = (here: Cursor) => {
    const [bar] = under(frame, here, span, width);
    if (bar !== undefined) onOpen(bar);
    else if (frame.head.lanes[here.lane]?.dense) onSpan(zoomed(span, 1 / 4, here.at, length));
  };
  const keys = (event: KeyboardEvent) => {
    const here = cursor ?? { lane: 0, at: (span.begin + span.end) / 2 };
    const next = keyed(event, here, span, frame);
    if (!next) return;
    event.preventDefault();
    if (next === "open") return pick(here);
    if (next.span) onSpan(next.span);
    setCursor(next.cursor);
  };
  return (
    <>
      <div class="lanes">
        <div class="lane-names">
          {places.map((place, lane) => (
            <div key={lane} style={{ top: `${place.top}px`, height: `${place.height}px` }}>
              <LaneName place={place} frame={frame} />
            </div>
          ))}
        </div>
        <div class="lane-canvas" style={{ height: `${height}px` }}>
          <canvas
            ref={canvas}
            tabIndex={0}
            role="application"
            aria-label="timeline: left and right move the cursor, up and down the lane, plus and minus zoom, page up and page down move the window, Enter opens what is under the cursor"
            style={{ width: `${width}px`, height: `${height}px` }}
            onKeyDown={keys}
          />
        </div>
      </div>
      <Under frame={frame} cursor={cursor} span={span} width={width} onOpen={onOpen} />
    </>
  );
}

/** A value that is made again when one of its inputs is another. Unlike with an effect, it is there at once. */
function useKept<T>(inputs: unknown[], make: () => T): T {
  const kept = useRef<{ inputs: unknown[]; value: T } | null>(null);
  if (!kept.current || inputs.some((input, at) => input !== kept.current!.inputs[at])) kept.current = { inputs, value: make() };
  return kept.current.value;
}

function LaneName({ place: { lane }, frame }: { place: Place; frame: Frame }) {
  const [begin, end] = [Math.max(0, frame.head.begin), Math.min(frame.head.length, frame.head.end)];
  const share = end > begin ? `${((100 * lane.busy) / (end - begin)).toFixed(1)} %` : "–";
  return (
    <>
      <strong title={visible(lane.title)}>{visible(lane.title)}</strong>
      <span class="quiet" title="share of the loaded window with at least one interval, and their number">
        {lane.role === "archivist" ? "" : `${share} · `}{lane.intervals.toLocaleString("en")}
      </span>
    </>
  );
}

function under(frame: Frame, { lane, at, track }: Cursor, span: Span, width: number): number[] {
  return barsAt(frame, lane, at, (2 * (span.end - span.begin)) / Math.max(1, width), track);
}

function about(frame: Frame, bar: number | undefined): string {
  return bar === undefined ? "" : frame.head.samples[bar] || frame.head.groups[bar];
}

/** What is under the cursor, in words. Its place is kept, so that nothing moves. */
function Under({ frame, cursor, span, width, onOpen }: { frame: Frame; cursor: Cursor | null; span: Span; width: number; onOpen: (bar: number) => void }) {
  if (!cursor || !frame.head.lanes[cursor.lane]) return <div class="under quiet">Point at a bar, or move the cursor with the arrow keys, to see what it is.</div>;
  const bars = under(frame, cursor, span, width);
  const idle = frame.head.idle.filter((gap) => gap.lane === cursor.lane && gap.start <= cursor.at && gap.end >= cursor.at);
  const means = meansAt(frame, cursor.lane, cursor.at);
  return (
    <div class="under" role="status" aria-live="polite">
      <p class="quiet">
        {visible(frame.head.lanes[cursor.lane].title)} at {cursor.at.toFixed(3)} s
        {bars.length + means.length + idle.length === 0 && ": nothing"}
      </p>
      <ul>
        {idle.map((gap) => <li key={gap.start}>idle {duration(gap.end - gap.start)}: waited for {visible(gap.waited_for)}</li>)}
        {means.map(([work, mean]) => <li key={work}>{work}: {mean.toFixed(2)} at once on average; zoom in for single ones</li>)}
        {bars.slice(0, LISTED).map((bar) => (
          <li key={bar}>
            <button onClick={() => onOpen(bar)}>{nameOf(frame, bar)}</button>{" "}
            {duration(frame.bar_end[bar] - frame.bar_start[bar])}, from {frame.bar_start[bar].toFixed(3)} s
          </li>
        ))}
        {bars.length > LISTED && <li class="quiet">and {bars.length - LISTED} more</li>}
      </ul>
    </div>
  );
}

type Keyed = { span?: Span; cursor: Cursor } | "open" | null;

function keyed(event: KeyboardEvent, here: Cursor, span: Span, frame: Frame): Keyed {
  const [width, { length, lanes }] = [span.end - span.begin, frame.head];
  const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const lanewise = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  const windows = { PageUp: -1, PageDown: 1 }[event.key];
  const factor = { "+": 1 / ZOOM, "=": 1 / ZOOM, "-": ZOOM }[event.key];
  if (event.key === "Enter") return "open";
  if (lanewise) return { cursor: { lane: Math.min(lanes.length - 1, Math.max(0, here.lane + lanewise)), at: here.at } };
  if (factor) return { span: zoomed(span, factor, here.at, length), cursor: here };
  if (windows) return { span: moved(span, windows * width, length), cursor: { lane: here.lane, at: here.at + windows * width } };
  if (!sideways) return null;
  const at = Math.min(length, Math.max(0, here.at + (sideways * width) / 100));
  const out = at < span.begin || at > span.end;
  return { span: out ? moved(span, sideways * width * PAN, length) : undefined, cursor: { lane: here.lane, at } };
}

interface Pointer {
  span: Span;
  width: number;
  length: number;
  places: Place[];
  onSpan: (span: Span) => void;
  setCursor: (cursor: Cursor) => void;
  onPick: (cursor: Cursor) => void;
}

/** Drag, wheel and click. */
function usePointer(canvas: { current: HTMLCanvasElement | null }, pointer: Pointer): void {
  const now = useRef(pointer);
  now.current = pointer;
  useEffect(() => {
    const target = canvas.current!;
    const secondsPerPixel = () => (now.current.span.end - now.current.span.begin) / now.current.width;
    const cursorAt = (event: MouseEvent): Cursor => {
      const { places, span } = now.current;
      const lane = Math.max(0, places.findIndex(({ top, height }) => event.offsetY < top + height + 3));
      const { top, height, lane: head } = places[lane];
      const track = Math.floor(((event.offsetY - top) / height) * head.depth);
      return { lane, at: span.begin + event.offsetX * secondsPerPixel(), track: Math.min(head.depth - 1, Math.max(0, track)) };
    };
    let pressed: { x: number; span: Span } | null = null;
    let dragged = false;
    const down = (event: PointerEvent) => {
      [pressed, dragged] = [{ x: event.clientX, span: now.current.span }, false];
      target.setPointerCapture(event.pointerId);
    };
    const move = (event: PointerEvent) => {
      if (!pressed) return now.current.setCursor(cursorAt(event));
      const by = event.clientX - pressed.x;
      dragged ||= Math.abs(by) >= CLICK;
      if (dragged) now.current.onSpan(moved(pressed.span, -by * secondsPerPixel(), now.current.length));
    };
    const up = (event: PointerEvent) => {
      if (pressed && !dragged && event.offsetY > AXIS) now.current.onPick(cursorAt(event));
      pressed = null;
    };
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      const { span, length, onSpan } = now.current;
      const sideways = event.shiftKey ? event.deltaY : event.deltaX;
      if (sideways) return onSpan(moved(span, sideways * secondsPerPixel(), length));
      onSpan(zoomed(span, Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 200) * 0.002), cursorAt(event).at, length));
    };
    target.addEventListener("pointerdown", down);
    target.addEventListener("pointermove", move);
    target.addEventListener("pointerup", up);
    target.addEventListener("wheel", wheel, { passive: false });
    return () => {
      target.removeEventListener("pointerdown", down);
      target.removeEventListener("pointermove", move);
      target.removeEventListener("pointerup", up);
      target.removeEventListener("wheel", wheel);
    };
  }, []);
}

/** The colours of the kinds of work. */
export function Legend({ works }: { works: string[] }) {
  const dark = theme.value === "dark";
  const swatch = (work: string, version: number) => <svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" fill={colourOf(work, version, dark)} /></svg>;
  return (
    <ul class="legend" aria-label="colours">
      {works.map((work) => (
        <li key={work}>{work === "generate" ? [0, 1, 2, 3].map((version) => swatch(work, version)) : swatch(work, -1)} {work === "generate" ? "generate, by weight version" : visible(work)}</li>
      ))}
    </ul>
  );
}

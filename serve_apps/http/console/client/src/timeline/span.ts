// A window of time [s], and how it moves.
export interface Span {
  begin: number;
  end: number;
}

/** Shortest window [s]: times have microseconds. */
const SHORTEST = 2e-5;
const STEPS = [1, 2, 5];

/** A window with some room around the run, but not more than that. */
export function limited({ begin, end }: Span, length: number): Span {
  const most = Math.max(length, SHORTEST) * 1.04;
  const width = Math.min(most, Math.max(SHORTEST, end - begin));
  const room = (most - length) / 2;
  const first = Math.min(Math.max(begin, -room), length + room - width);
  return { begin: first, end: first + width };
}

export function moved(span: Span, by: number, length: number): Span {
  return limited({ begin: span.begin + by, end: span.end + by }, length);
}

/** Zooms by a factor; the time `at` keeps its place. */
export function zoomed(span: Span, factor: number, at: number, length: number): Span {
  const width = Math.min(length * 1.04, Math.max(SHORTEST, (span.end - span.begin) * factor));
  const share = (at - span.begin) / (span.end - span.begin);
  return limited({ begin: at - share * width, end: at + (1 - share) * width }, length);
}

/** Times of the axis: at most `most`, at 1, 2 or 5 of a decimal place. */
export function ticks({ begin, end }: Span, most: number): number[] {
  const least = (end - begin) / most;
  const decade = 10 ** Math.floor(Math.log10(least));
  const step = decade * (STEPS.find((number) => number * decade >= least) ?? 10);
  const first = Math.ceil(begin / step);
  return Array.from({ length: Math.max(0, Math.floor(end / step) - first + 1) }, (_, at) => (first + at) * step);
}

/** A length of time as a person reads it. */
export function duration(seconds: number): string {
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 120) return `${seconds.toFixed(2)} s`;
  return seconds < 7200 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

// The shortest edit script of two sequences of token ids (Myers, "An O(ND) Difference Algorithm", 1986), bounded.

/** Edits after which the rest is shown as replaced: memory and time grow with their square. */
const MOST = 1500;

/** same, only: tokens [from, to) of `b`; gone: tokens [from, to) of `a`. */
export interface Part {
  kind: "same" | "only" | "gone";
  from: number;
  to: number;
}

export interface Diff {
  parts: Part[];
  /** Whether the script is the shortest one; false if it would have more than `most` edits. */
  whole: boolean;
}

type Numbers = ArrayLike<number>;

export function diff(a: Numbers, b: Numbers, most = MOST): Diff {
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < Math.min(a.length, b.length) - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const parts: Part[] = [];
  add(parts, "same", 0, head);
  const whole = middle(a, b, head, a.length - tail, b.length - tail, most, parts);
  add(parts, "same", b.length - tail, b.length);
  return { parts, whole };
}

/** Appends tokens to the parts; adjacent parts of one kind are joined. */
function add(parts: Part[], kind: Part["kind"], from: number, to: number): void {
  if (from >= to) return;
  const last = parts.at(-1);
  if (last && last.kind === kind && last.to === from) last.to = to;
  else parts.push({ kind, from, to });
}

/** Appends the script of a[from..aEnd) and b[from..bEnd). */
function middle(a: Numbers, b: Numbers, from: number, aEnd: number, bEnd: number, most: number, parts: Part[]): boolean {
  const n = aEnd - from;
  const m = bEnd - from;
  const bound = Math.min(n + m, most);
  const reach = new Int32Array(2 * bound + 3); // furthest index of `a` on each diagonal, -bound-1 to bound+1
  const zero = bound + 1;
  const trace: Int32Array[] = [];
  for (let edits = 0; edits <= bound; edits += 1) {
    trace.push(reach.slice(zero - edits - 1, zero + edits + 2));
    for (let diagonal = -edits; diagonal <= edits; diagonal += 2) {
      const down = diagonal === -edits || (diagonal !== edits && reach[zero + diagonal - 1] < reach[zero + diagonal + 1]);
      let x = down ? reach[zero + diagonal + 1] : reach[zero + diagonal - 1] + 1;
      while (x < n && x - diagonal < m && a[from + x] === b[from + x - diagonal]) x += 1;
      reach[zero + diagonal] = x;
      if (x >= n && x - diagonal >= m) {
        for (const [kind, begin] of backwards(trace, n, m)) add(parts, kind, from + begin, from + begin + 1);
        return true;
      }
    }
  }
  add(parts, "gone", from, aEnd);
  add(parts, "only", from, bEnd);
  return false;
}

/** The script token by token, from the reach before each edit. */
function backwards(trace: Int32Array[], n: number, m: number): [Part["kind"], number][] {
  const script: [Part["kind"], number][] = [];
  let x = n;
  let y = m;
  for (let edits = trace.length - 1; edits >= 0; edits -= 1) {
    const before = trace[edits];
    const at = (diagonal: number) => before[diagonal + edits + 1];
    const diagonal = x - y;
    const down = diagonal === -edits || (diagonal !== edits && at(diagonal - 1) < at(diagonal + 1));
    const left = edits === 0 ? 0 : down ? at(diagonal + 1) : at(diagonal - 1);
    const top = edits === 0 ? 0 : left - (down ? diagonal + 1 : diagonal - 1);
    while (x > (edits === 0 || down ? left : left + 1) && y > (edits === 0 || !down ? top : top + 1)) script.push(["same", --y]), (x -= 1);
    if (edits > 0) script.push(down ? ["only", top] : ["gone", left]);
    x = left;
    y = top;
  }
  return script.reverse();
}

"""`report`: the figures of a simulated run as text."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from tests.simulation.scale.virtual_run import VirtualRun
from tests.simulation.scale.walls import walls


def report(run: VirtualRun, seconds: float, real_s: float) -> str:
    """Return the figures of a run of `seconds` of virtual time. real_s: time that the simulation took."""
    return "\n".join([*_run(run, seconds, real_s), "", *_events(run, seconds), "", *_walls(run, seconds)])


def _run(run: VirtualRun, seconds: float, real_s: float) -> Iterator[str]:
    costs, state, measures, engines = run.costs, run.state, run.measures, run.engines.engines
    samples = sum(len(group.samples) for group in state.groups.values())
    yield (
        f"{costs.engines:,} engines, at most {costs.open_samples:,} open samples, a chunk every {costs.chunks_s:g} s; "
        f"{seconds:,.0f} virtual seconds in {real_s:.0f} s, seed {costs.seed}"
    )
    yield (
        f"steps {state.version}, of {costs.groups:,} groups of {costs.group_size}; "
        f"trainer busy {run.training_s / seconds:.0%}"
    )
    yield (
        f"open at the end: {state.open_groups:,} groups, {samples:,} samples; {run.engines.leases:,} leases, "
        f"{len(run.engines.queue):,} requests wait; {run.engines.lost} engines were lost"
    )
    idle = sorted(engine.idle / seconds for engine in engines)
    used = statistics.fmean(engine.used for engine in engines) / (seconds * costs.room)
    p10, p90 = idle[len(idle) // 10], idle[len(idle) * 9 // 10]
    yield f"engines without a sample: {statistics.fmean(idle):.1%} of the time, p10 {p10:.1%}, p90 {p90:.1%}"
    yield f"engines' places used: {used:.1%} of {costs.room}"
    yield f"decide, ms a cycle: {_ms(measures.cycles)}; cycles that seal a batch: {_ms(measures.sealing)}"
    yield f"fold: {1e6 * measures.folding / measures.events.total():.1f} us an event, in {measures.appends:,} appends"
    if measures.snapshots:
        newest = measures.snapshots[-1]
        yield (
            f"snapshot: state {newest.plain / 1e6:.1f} MB, {1e3 * newest.encoding:.0f} ms of the conductor; "
            f"file {newest.stored / 1e6:.1f} MB, {1e3 * newest.storing:.0f} ms of a thread"
        )


def _ms(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return "none" if not seconds else f"{1e3 * seconds[0]:.2f}"
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")  # none beyond the largest
    return f"p50 {1e3 * cuts[49]:.2f}, p99 {1e3 * cuts[98]:.2f}, most {1e3 * max(seconds):.1f} ({len(seconds):,})"


def _events(run: VirtualRun, seconds: float) -> Iterator[str]:
    measures = run.measures
    yield f"{'event':<20} {'events/s':>10} {'bytes':>8} {'MB/s':>8} {'encode us':>10} {'decode us':>10}"
    total = 0.0
    for kind, count in measures.events.most_common():
        size = statistics.fmean(measures.sizes[kind])
        total += count * size / seconds / 1e6
        encode, decode = (1e6 * statistics.median(times[kind]) for times in (measures.encoding, measures.decoding))
        row = f"{kind:<20} {count / seconds:>10,.1f} {size:>8,.0f} {count * size / seconds / 1e6:>8.2f}"
        yield f"{row} {encode:>10.0f} {decode:>10.0f}"
    yield f"{'all':<20} {measures.events.total() / seconds:>10,.1f} {'':>8} {total:>8.2f}"


def _walls(run: VirtualRun, seconds: float) -> Iterator[str]:
    yield f"{'part':<38} {'needed':>8}  how"
    rows = walls(run, seconds)
    for wall in rows:
        yield f"{wall.part:<38} {wall.share:>8.2f}  {wall.text}"
    yield f"first wall: {rows[0].part}" if rows[0].share > 1 else "no wall: each part carries this run"

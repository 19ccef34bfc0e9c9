"""Measure the cost of a trace span: for the code that records it, and with the thread that exports it to a file.

The share of a step is computed: the CPU time of its spans, by the time of a step of the demo at staleness 1. It is an
upper bound of what tracing adds to the step, because the exporting thread works beside it.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.figure import Better, Figure
from schemas.codec import decode
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.span import Span, trace_id
from slime_events.core.telemetry.telemetry import Telemetry
from tests.golden.log_file import FOLDER, read_records

LOG = FOLDER / "v6.slimelog"
FLUSH_S = 60.0
PER_STEP, STEP_S = 318, 0.669
"""Spans of a step of the demo, and its seconds: 19,058 spans of 60 steps, and the baseline of `step`."""


def measure(spans: int = 20_000) -> list[Figure]:
    """Return the median microseconds per span. Pauses of the machine affect only a few spans."""
    with tempfile.TemporaryDirectory() as folder:
        telemetry = Telemetry.start("benchmark", "run", None, Path(folder) / "spans.jsonl", 1.0)
        trace = trace_id("run", "prompt")
        times = []
        for number in range(spans):
            begun = time.perf_counter()
            telemetry.record(
                Span(
                    name="generate",
                    trace=trace,
                    span=number + 1,
                    parent=1,
                    start_ns=number,
                    end_ns=number + 1,
                    attributes={"sample": "g-s0", "tokens": 64},
                )
            )
            times.append(time.perf_counter() - begun)
        telemetry.shutdown(FLUSH_S)
    note = f"{spans:,} spans, {telemetry.dropped:,} dropped at this pace"
    value = statistics.median(times) * 1e6
    cpu = _cpu_of_a_span(spans)
    share_note = f"{cpu * 1e6:.1f} us of CPU a span, {PER_STEP} spans in a step of {STEP_S} s"
    return [
        Figure(name="span, for its caller", value=value, unit="us", target=100.0, better=Better.LOWER, note=note),
        Figure(name="tracing, share of a step", value=cpu * PER_STEP / STEP_S, unit="share", target=0.01,
               better=Better.LOWER, note=share_note),
    ]  # fmt: skip


def _cpu_of_a_span(spans: int) -> float:
    """Return the CPU seconds from an event to its span in a file, of all threads. The events are those of a run."""
    envelopes = [envelope for record in read_records(LOG) if span_of(envelope := decode(record)) is not None]
    repeated = itertools.islice(itertools.cycle(envelopes), spans)
    with tempfile.TemporaryDirectory() as folder:
        telemetry = Telemetry.start("benchmark", "run", None, Path(folder) / "spans.jsonl", 1.0)
        begun = time.process_time()
        for envelope in repeated:
            telemetry.record_event(envelope)
        telemetry.shutdown(FLUSH_S)
        return (time.process_time() - begun) / spans

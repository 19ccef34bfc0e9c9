"""Measure the cost of traces: for the process that appends an event, and as a share of a step's time.

The share counts the CPU time of all that a run does for its traces, in all threads. Without an endpoint that is the
trace context of each envelope. With one, it is also the hand-over to the exporting thread, and the spans and requests
that this thread makes; the collector, a process of its own that only reads them, does not count.

The events are like those of a step of the demo, in number too, and their ids are new, as in a run. The process freezes
its objects for the garbage collector, as each process of a run does. The share is the median over the steps, by the
seconds of a step of the demo on a machine without other load: the most that traces add to a step, if it waited for all
of it. The demo has three such processes on two cores, and their exporting threads work beside the others. With other
load, a span costs several times as much, as everything does; the step then takes longer, too, which the share does not
count.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.figure import Better, Figure
from schemas.envelope import Envelope, enclose
from schemas.event import Event
from schemas.rollouts import Timings, WeightSpan
from slime_events.core.telemetry.event_spans import traceparent_of
from slime_events.core.telemetry.span import span_id, trace_id
from slime_events.core.telemetry.telemetry import Telemetry
from tests import made

RUN = "benchmark"
FLUSH_S = 60.0
STEP_S = 0.669
"""Seconds of a step of the demo: the baseline of `step`."""
GROUPS, PROMPTS, SAMPLES = 16, 24, 8
"""Accepted groups and submitted prompts of a step of the demo, and samples per group."""
ROLLOUTS = 137
"""Completed and graded rollouts of a step. All together are 318 spans: a demo had 19,058 in 60 steps."""
PER_APPEND = 8
COLLECTOR = """
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def measure(steps: int = 30) -> list[Figure]:
    """Return the microseconds per event for its caller, and the shares of a step."""
    events = [[enclose(RUN, event, at=10**18, producer="engine-0") for event in _events(step)] for step in range(steps)]
    gc.collect()
    gc.freeze()
    for cached in (trace_id, span_id):  # a run has not seen the ids of its next events
        cached.cache_clear()
    with _collector() as endpoint:
        alone, traced = [_costs(events, to) for to in (None, endpoint)]
    gc.unfreeze()
    spans = len(events[0])
    note = f"{spans} spans in a step of {STEP_S} s; all threads"
    return [
        Figure(name="span, for its caller", value=traced.caller_s / spans * 1e6, unit="us", target=100.0,
               better=Better.LOWER, note=f"{steps * spans:,} spans, {traced.dropped:,} dropped"),
        Figure(name="tracing, share of a step", value=alone.cpu_s / STEP_S, unit="share", target=0.01,
               better=Better.LOWER, note=f"{alone.cpu_s / spans * 1e6:.1f} us of CPU a span, {note}"),
        Figure(name="tracing with an endpoint, share of a step", value=traced.cpu_s / STEP_S, unit="share",
               better=Better.LOWER, note=f"{traced.cpu_s / spans * 1e6:.1f} us of CPU a span, {note}"),
    ]  # fmt: skip


class Costs(NamedTuple):
    """Medians over the steps."""

    caller_s: float
    cpu_s: float
    dropped: int


def _costs(events: Sequence[Sequence[Envelope]], endpoint: str | None) -> Costs:
    """Return what the events of each step cost a process whose spans go to the endpoint."""
    for cached in (trace_id, span_id):  # a run has not seen the ids of its next events
        cached.cache_clear()
    telemetry = Telemetry.start("benchmark", RUN, endpoint, 1.0)
    costs = [_cost(step, telemetry) for step in events]
    telemetry.shutdown(FLUSH_S)
    return Costs(*(statistics.median(cost) for cost in zip(*costs, strict=True)), telemetry.dropped)


@contextlib.contextmanager
def _collector() -> Iterator[str]:
    """Yield the endpoint of a process that reads requests and answers them."""
    process = subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


def _cost(events: Sequence[Envelope], telemetry: Telemetry) -> tuple[float, float]:
    """Return the seconds that a step's events take their caller, and the CPU seconds until their spans have arrived."""
    recorded, begun, cpu = 0, time.perf_counter(), time.process_time()
    before = telemetry.exported
    for at in range(0, len(events), PER_APPEND):
        append = events[at : at + PER_APPEND]
        for envelope in append:
            traceparent_of(RUN, envelope.event)
        recorded += telemetry.record(append)
    caller_s = time.perf_counter() - begun
    while telemetry.exported < before + recorded and time.perf_counter() < begun + FLUSH_S:
        time.sleep(0.25)
    return caller_s, time.process_time() - cpu


def _events(step: int) -> Iterator[Event]:
    """Yield events of a step like those of the demo, each of which ends a span."""
    groups = [f"train-{step}-{number:06}" for number in range(PROMPTS)]
    samples = [f"{group}-s{index}" for group in groups for index in range(SAMPLES)][:ROLLOUTS]
    yield from (made.submitted(group, text="2+2=", tokens=range(13)) for group in groups)
    spans, timings = (WeightSpan(0, 12, step),), Timings(queued=0.25, generating=0.375)
    for sample in samples:
        yield made.completed(sample, length=12, spans=spans, engine="engine-0", timings=timings)
        yield made.assigned(sample, value=0.5, grader="exact")
    for number, group in enumerate(groups[:GROUPS]):
        ids = samples[number * SAMPLES : (number + 1) * SAMPLES]
        yield made.accepted(group, samples=tuple(ids), rewards=(0.5,) * SAMPLES)
    batch = tuple(samples[: GROUPS * SAMPLES])
    rewards = (0.5,) * len(batch)
    yield made.sealed(step, samples=batch, groups=tuple(groups[:GROUPS]), rewards=rewards, raw_rewards=rewards)
    metrics = {f"metric_{number}": number / 7 for number in range(21)}
    yield made.committed(step, metrics=metrics, seconds={"train": 0.5})
    yield made.published(step + 1, parent=step)
    yield made.activated(step + 1)

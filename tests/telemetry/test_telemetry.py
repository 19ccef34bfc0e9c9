"""Spans on their way out: bounded, counted, never in the way."""

from __future__ import annotations

import logging
import logging.handlers
import threading
import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

import pytest

from schemas.envelope import enclose
from schemas.rollouts import StopReason, WeightSpan
from schemas.turns import AgentTurn
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.exporters import FileExporter
from slime_events.core.telemetry.process_log import setup_logging
from slime_events.core.telemetry.span import Span
from slime_events.core.telemetry.telemetry import BATCH_SPANS, Telemetry
from tests import made
from tests.telemetry.collector import Collector, collecting
from tests.telemetry.otlp_json import to_otlp_json
from tests.telemetry.span_files import read_spans, to_file

AGENT = AgentTurn(key="k", dialect="chat", call="turn-0-g0-s1-s0")
TURN = made.turn("g0-s1", 0, spans=(WeightSpan(0, 1, 3),), agent=AGENT, stop=StopReason.STOP, seconds=0.5, error="no")
ENVELOPE = enclose("demo", TURN, at=10**18, producer="p")
"""An event whose span has all fields."""


def record(telemetry: Telemetry, times: int = 1) -> int:
    return telemetry.record([ENVELOPE] * times)


def span() -> Span:
    whole = span_of(ENVELOPE)
    assert whole is not None
    assert None not in (whole.parent, whole.error)
    assert len(whole.links) == 1
    return whole


class Stuck(FileExporter):
    """Play a slow exporter. A caller that waits for it hangs."""

    def __init__(self) -> None:
        super().__init__(BytesIO(), {})
        self.go = threading.Event()
        self.closed: int | None = None

    def export(self, spans: Sequence[Span]) -> bool:
        return self.go.wait(600)

    def end(self, dropped: int) -> None:
        self.closed = dropped


def test_a_full_queue_drops_and_counts_without_waiting() -> None:
    exporter = Stuck()
    telemetry = Telemetry(exporter, 1.0, queue_spans=10)
    assert record(telemetry, 5000) == 5000
    exporter.go.set()
    assert not telemetry.shutdown(60)
    assert telemetry.exported + telemetry.dropped == 5000
    assert telemetry.exported <= 10 + BATCH_SPANS
    assert exporter.closed == telemetry.dropped
    assert not record(telemetry), "after the end everything is dropped"
    assert telemetry.exported + telemetry.dropped == 5001


def test_shutdown_keeps_its_deadline_and_counts_what_is_lost() -> None:
    exporter = Stuck()
    telemetry = Telemetry(exporter, 1.0)
    record(telemetry, 600)
    assert not telemetry.shutdown(0.2)
    assert telemetry.dropped >= 88
    exporter.go.set()


def test_a_failing_exporter_is_counted() -> None:
    class Failing(Stuck):
        def export(self, spans: Sequence[Span]) -> bool:
            raise OSError("full")

    telemetry = Telemetry(Failing(), 1.0)
    record(telemetry)
    assert not telemetry.shutdown(60)
    assert (telemetry.dropped, telemetry.exported) == (1, 0)


def test_file_round_trip_and_the_count_of_dropped(tmp_path: Path) -> None:
    path = tmp_path / "traces" / "role-1.jsonl"
    telemetry = to_file(path)
    assert record(telemetry)
    assert telemetry.shutdown(60)
    assert list(map(to_otlp_json, read_spans(path.parent).spans)) == [to_otlp_json(span())]
    assert '"kind":4' in path.read_text()
    assert path.read_text().splitlines()[-1] == '{"dropped":0}'


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_what_is_not_sampled_and_what_has_no_endpoint_costs_nothing(share: float, collector: Collector) -> None:
    off = Telemetry.start("role", "demo", None if share else collector.endpoint, share)
    assert not record(off)
    assert off.shutdown()
    assert collector.requests == []


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def test_otlp_gets_the_ids_and_times_that_were_given(collector: Collector) -> None:
    telemetry = Telemetry.start("trainer", "demo", collector.endpoint, 1.0)
    record(telemetry)
    assert telemetry.shutdown(60)
    (resource_spans,) = collector.requests[0].resource_spans
    resource = {a.key: a.value.string_value for a in resource_spans.resource.attributes}
    assert resource["service.name"] == "trainer"
    (sent,), ours = resource_spans.scope_spans[0].spans, to_otlp_json(span())
    assert (sent.trace_id.hex(), sent.span_id.hex()) == (ours["traceId"], ours["spanId"])
    assert (sent.parent_span_id.hex(), sent.name) == (ours["parentSpanId"], "turn")
    assert (sent.start_time_unix_nano, sent.end_time_unix_nano) == (span().start_ns, 10**18)
    assert (sent.kind, sent.links[0].trace_id.hex(), sent.status.message) == (4, ours["links"][0]["traceId"], "no")
    assert {a.key for a in sent.attributes} == {a["key"] for a in ours["attributes"]}


def test_otlp_that_is_away_is_given_up_in_time() -> None:
    telemetry = Telemetry.start("trainer", "demo", "http://127.0.0.1:9", 1.0)
    record(telemetry)
    assert not telemetry.shutdown(1.0)


def test_process_log(tmp_path: Path) -> None:
    root = logging.getLogger()
    for left in [handler for handler in root.handlers if isinstance(handler, logging.handlers.RotatingFileHandler)]:
        root.removeHandler(left)  # tests before ran roles in this process
        left.close()
    before, level = list(root.handlers), root.level
    logging.captureWarnings(False)  # a test before may have left it on, bound to a context that pytest has closed
    try:
        first = setup_logging("trainer", tmp_path / "logs")
        second = setup_logging("trainer", tmp_path / "others")
        logging.getLogger("x").info("said once")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("odd", stacklevel=1)
        assert not any(text in first.read_text() for text in ("said once", "odd"))  # threads of other tests may log too
        assert "INFO x: said once" in second.read_text()
        assert "odd" in second.read_text()
        assert second.name.startswith("trainer-")
        assert len(root.handlers) == len(before) + 1
    finally:
        logging.captureWarnings(False)
        root.setLevel(level)
        for handler in set(root.handlers) - set(before):
            root.removeHandler(handler)
            handler.close()

"""Spans on their way out: bounded, counted, never in the way."""

from __future__ import annotations

import logging
import logging.handlers
import threading
import warnings
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from schemas.envelope import enclose
from schemas.rollouts import StopReason, WeightSpan
from schemas.turns import AgentTurn
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.exporters import FileExporter
from slime_events.core.telemetry.process_log import setup_logging
from slime_events.core.telemetry.read import read_spans
from slime_events.core.telemetry.span import Span
from slime_events.core.telemetry.telemetry import BATCH_SPANS, Telemetry
from tests import made
from tests.telemetry.otlp_json import to_otlp_json

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
    telemetry = Telemetry.start("role", "demo", None, path, 1.0)
    assert record(telemetry)
    assert telemetry.shutdown(60)
    assert list(map(to_otlp_json, read_spans(path.parent).spans)) == [to_otlp_json(span())]
    assert '"kind":4' in path.read_text()
    assert path.read_text().splitlines()[-1] == '{"dropped":0}'


def test_what_is_not_sampled_costs_nothing_and_goes_nowhere(tmp_path: Path) -> None:
    off = Telemetry.start("role", "demo", None, tmp_path / "x.jsonl", 0.0)
    assert not record(off)
    assert not (tmp_path / "x.jsonl").exists()


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """An OTLP/HTTP endpoint and what it got."""
    got: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                got.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()


def test_otlp_gets_the_ids_and_times_that_were_given(collector: tuple[str, list[ExportTraceServiceRequest]]) -> None:
    endpoint, got = collector
    telemetry = Telemetry.start("trainer", "demo", endpoint, None, 1.0)
    record(telemetry)
    assert telemetry.shutdown(60)
    (resource_spans,) = got[0].resource_spans
    resource = {a.key: a.value.string_value for a in resource_spans.resource.attributes}
    assert resource["service.name"] == "trainer"
    (sent,), ours = resource_spans.scope_spans[0].spans, to_otlp_json(span())
    assert (sent.trace_id.hex(), sent.span_id.hex()) == (ours["traceId"], ours["spanId"])
    assert (sent.parent_span_id.hex(), sent.name) == (ours["parentSpanId"], "turn")
    assert (sent.start_time_unix_nano, sent.end_time_unix_nano) == (span().start_ns, 10**18)
    assert (sent.kind, sent.links[0].trace_id.hex(), sent.status.message) == (4, ours["links"][0]["traceId"], "no")
    assert {a.key for a in sent.attributes} == {a["key"] for a in ours["attributes"]}


def test_otlp_that_is_away_is_given_up_in_time() -> None:
    telemetry = Telemetry.start("trainer", "demo", "http://127.0.0.1:9", None, 1.0)
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
        assert first.read_text() == ""
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

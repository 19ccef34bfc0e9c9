"""`Telemetry`: exports the spans of one process to a file or an OTLP/HTTP endpoint, without blocking the process."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple, Protocol, cast

import msgspec

from schemas.doc import doc
from schemas.envelope import Envelope
from schemas.references import expand
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.span import Span, to_otlp_json
from storage.event_block import HasEventBlocks
from storage.log import Append, CountsRefusals, EventLog

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

logger = logging.getLogger(__name__)


class SpanExporter(Protocol):
    """Sends finished spans. Called from a single background thread."""

    def export(self, spans: Sequence[Span]) -> bool:
        """Send spans. Returns whether they arrived; an OSError means that they did not."""

    def close(self, dropped: int) -> None:
        """End the export. dropped: number of spans that never arrived."""


class FileExporter:
    """Writes JSON lines: `{"resource": ...}`, then OTLP JSON spans, then `{"dropped": n}`."""

    def __init__(self, file: BinaryIO, resource: dict[str, str | int]) -> None:
        self._file = file
        self._write([{"resource": resource}])

    @classmethod
    def append_to(cls, path: Path, resource: dict[str, str | int]) -> FileExporter:
        """Return an exporter that appends to a file, without a buffer."""
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(cast("BinaryIO", path.open("ab", buffering=0)), resource)

    def export(self, spans: Sequence[Span]) -> bool:
        """Append the spans in a single write, so that readers see whole lines."""
        self._write([to_otlp_json(span) for span in spans])
        return True

    def end(self, dropped: int) -> None:
        """Write the number of dropped spans."""
        self._write([{"dropped": dropped}])

    def close(self, dropped: int) -> None:
        """Write the number of dropped spans and close the file."""
        self.end(dropped)
        self._file.close()

    def _write(self, lines: Sequence[dict[str, Any]]) -> None:
        self._file.write(msgspec.json.Encoder().encode_lines(lines))


class OtlpExporter:
    """OpenTelemetry's own OTLP/HTTP exporter, with predefined ids and times."""

    TIMEOUT_S = 10.0

    def __init__(self, endpoint: str, resource: dict[str, str | int]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        endpoint = expand(endpoint)
        url = endpoint if endpoint.endswith("/v1/traces") else endpoint.rstrip("/") + "/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint=url, timeout=self.TIMEOUT_S)
        self._resource, self._scope = Resource(resource), InstrumentationScope("slime_events")

    def export(self, spans: Sequence[Span]) -> bool:
        """Send the spans. The exporter retries up to its time limit."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        return bool(self._exporter.export([self._convert(span) for span in spans]) is SpanExportResult.SUCCESS)

    def close(self, dropped: int) -> None:
        """Stop retries."""
        self._exporter.shutdown()

    def _convert(self, span: Span) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

        def context(trace: int, span_id: int) -> SpanContext:
            return SpanContext(trace, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

        return ReadableSpan(
            name=span.name,
            context=context(span.trace, span.span),
            parent=context(span.trace, span.parent) if span.parent is not None else None,
            resource=self._resource,
            attributes=dict(span.attributes),
            links=[Link(context(link.trace, link.span)) for link in span.links],
            kind=SpanKind.PRODUCER,
            status=Status(StatusCode.ERROR, span.error) if span.error is not None else Status(),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


QUEUE_SPANS = 20_000
"""Most spans that may wait, 20 MB at one kilobyte each; further ones are dropped and counted."""
BATCH_SPANS = 512
PAUSE_S = 0.5


class Telemetry:
    """A bounded queue of spans and a background thread that exports them. Recording never blocks or raises.

    There is one per process; call `shutdown` at its end.
    """

    def __init__(self, exporter: SpanExporter | None, share: float, *, queue_spans: int = QUEUE_SPANS) -> None:
        self._exporter, self._share, self._limit = exporter, share if exporter else 0.0, queue_spans
        self._queue: deque[Span] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self.dropped = 0
        """Spans that did not arrive: the queue was full, the exporter failed, or the process ended first."""
        self.exported = 0
        self._thread = threading.Thread(target=self._run, args=(exporter,), name="telemetry", daemon=True)
        if exporter is not None:
            self._thread.start()

    @classmethod
    def start(cls, role: str, run: str, endpoint: str | None, file: Path | None, share: float) -> Telemetry:
        """Start exporting spans to the OTLP/HTTP `endpoint`, or to `file` without an endpoint, or nowhere.

        share: share of group traces that are kept, 0 to 1. `span_file` gives the file of a run folder.
        """
        resource: dict[str, str | int] = {"service.namespace": "slime-events", "service.name": role}
        resource |= {"rl.run.id": run, "process.pid": os.getpid()}
        exporter: SpanExporter | None = None
        if share > 0 and endpoint:
            exporter = OtlpExporter(endpoint, resource)
        elif share > 0 and file is not None:
            exporter = FileExporter.append_to(file, resource)
        return cls(exporter, share)

    def record_event(self, envelope: Envelope) -> bool:
        """Record the span that an appended event ends. Returns whether there is a span and it was queued."""
        span = span_of(envelope, self._share)
        return span is not None and self.record(span)

    def record(self, span: Span) -> bool:
        """Record a span. Returns whether it was queued."""
        if self._exporter is None:
            return False
        with self._lock:
            if self._stopping or len(self._queue) >= self._limit:
                self.dropped += 1
                return False
            self._queue.append(span)
            full = len(self._queue) == BATCH_SPANS
        if full:
            self._wake.set()
        return True

    def shutdown(self, deadline_s: float = 5.0) -> bool:
        """Export queued spans. Returns whether all arrived within the deadline; the rest count as dropped."""
        if self._exporter is None or self._stopping:
            return self.dropped == 0
        self._stopping = True
        self._wake.set()
        self._thread.join(deadline_s)
        # If the exporter hangs, the thread stays: it is a daemon and ends with the process.
        with self._lock:
            self.dropped += len(self._queue)
            self._queue.clear()
        if self.dropped:
            logger.warning("%d spans were dropped, %d exported", self.dropped, self.exported)
        return self.dropped == 0 and not self._thread.is_alive()

    def _run(self, exporter: SpanExporter) -> None:
        while self._queue or not self._stopping:
            with self._lock:
                batch = [self._queue.popleft() for _ in range(min(BATCH_SPANS, len(self._queue)))]
            if batch:
                self._export(exporter, batch)
            else:
                self._wake.wait(PAUSE_S)
                self._wake.clear()
        try:
            exporter.close(self.dropped)
        except OSError as error:
            logger.warning("the span exporter did not close: %s", error)

    def _export(self, exporter: SpanExporter, batch: list[Span]) -> None:
        try:
            arrived = exporter.export(batch)
        except OSError as error:
            logger.warning("spans could not be exported: %s", error)
            arrived = False
        with self._lock:
            if arrived:
                self.exported += len(batch)
            else:
                self.dropped += len(batch)


def span_file(run_folder: Path, role: str, pid: int) -> Path:
    """Return the path of a process's spans in a run's folder."""
    return run_folder / "traces" / f"{role}-{pid}.jsonl"


class Tracing(NamedTuple):
    """Arguments of `Telemetry.start` that are settings of the run."""

    endpoint: Annotated[str | None, doc("OTLP/HTTP endpoint; None: to `file`")]
    file: Path | None
    share: Annotated[float, doc("share of group traces that are kept, 0 to 1")]


NO_TRACING = Tracing(None, None, 0.0)


class TracedLog:
    """A log whose `append` also records spans. The telemetry belongs to the caller: `close` leaves it open."""

    def __init__(self, log: EventLog, telemetry: Telemetry) -> None:
        self._log, self._telemetry = log, telemetry
        self.run, self.read, self.last, self.last_of_each = log.run, log.read, log.last, log.last_of_each
        self.subjects, self.position, self.consume = log.subjects, log.position, log.consume
        self.read_records, self.end = log.read_records, log.end
        self.done_up_to, self.close = log.done_up_to, log.close
        self.notify, self.listen = log.notify, log.listen
        if isinstance(log, HasEventBlocks):
            self.event_blocks = log.event_blocks
        if isinstance(log, CountsRefusals):
            self.refused_batches = log.refused_batches

    async def append(self, appends: Sequence[Append]) -> list[int]:
        """Append events to the log, and record their spans if that succeeds."""
        positions = await self._log.append(appends)
        # Let the next append go first: spans are made while the log stores it.
        asyncio.get_running_loop().call_soon(self._record, appends)
        return positions

    def _record(self, appends: Sequence[Append]) -> None:
        for append in appends:
            self._telemetry.record_event(append.envelope)

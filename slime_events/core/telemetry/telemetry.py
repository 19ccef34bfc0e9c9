"""`Telemetry`: one process's spans, on their way out without holding it up."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.envelope import Envelope
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.exporters import FileExporter, OtlpExporter, SpanExporter, resource_of
from slime_events.core.telemetry.ids import SpanContext, sampled
from slime_events.core.telemetry.span import Attribute, Span, SpanKind

logger = logging.getLogger(__name__)

QUEUE_SPANS = 20_000
"""Spans that may wait; more are dropped and counted. At a kilobyte each this bounds the memory to some 20 MB."""
BATCH_SPANS = 512
PAUSE_S = 0.5


class Telemetry:
    """Spans go into a bounded queue; a background thread exports them. Nothing here ever blocks or raises on the way.

    `said` is for what is also an event, `record` for anything else. Give one to each process; `shutdown` it at the end.
    """

    def __init__(self, exporter: SpanExporter | None, share: float, *, queue_spans: int = QUEUE_SPANS) -> None:
        self._exporter, self._share, self._limit = exporter, share if exporter else 0.0, queue_spans
        self._queue: deque[Span] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._dropped = 0
        self._exported = 0
        self._thread = threading.Thread(target=self._run, args=(exporter,), name="telemetry", daemon=True)
        if exporter is not None:
            self._thread.start()

    @classmethod
    def start(cls, role: str, run: str, endpoint: str | None, file: Path | None, share: float) -> Telemetry:
        """Spans of this process to the OTLP/HTTP `endpoint` where there is one, else into `file`, else nowhere.

        share: of group traces that are kept, 0 to 1. For the file of a run folder see `span_file`.
        """
        exporter: SpanExporter | None = None
        if share > 0 and endpoint:
            exporter = OtlpExporter(endpoint, resource_of(role, run))
        elif share > 0 and file is not None:
            exporter = FileExporter(file, resource_of(role, run))
        return cls(exporter, share)

    @property
    def dropped(self) -> int:
        """Spans that did not arrive: the queue was full, the exporter failed, or the end came first."""
        return self._dropped

    @property
    def exported(self) -> int:
        """Spans that arrived."""
        return self._exported

    def said(self, envelope: Envelope) -> bool:
        """Record the span that ends with an event that was just appended; whether there is one and it was queued."""
        if self._share <= 0:
            return False
        span = span_of(envelope, self._share)
        return span is not None and self._enqueue(span)

    def record(
        self,
        name: str,
        *,
        trace: int,
        span_id: int,
        parent: int | None,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Attribute],
        links: Sequence[SpanContext] = (),
        kind: SpanKind = SpanKind.INTERNAL,
        error: str | None = None,
    ) -> bool:
        """Record a finished span with ids and times (UTC ns) as given; whether it is sampled and was queued."""
        if self._share <= 0 or not sampled(trace, self._share):
            return False
        return self._enqueue(
            Span(
                name=name,
                trace=trace,
                span=span_id,
                start_ns=start_ns,
                end_ns=end_ns,
                parent=parent,
                attributes=attributes,
                links=links,
                kind=kind,
                error=error,
            )
        )

    def shutdown(self, deadline_s: float = 5.0) -> bool:
        """Export what is queued; whether all arrived within the deadline. What did not is counted as dropped."""
        if self._exporter is None or self._stopping:
            return self._dropped == 0
        self._stopping = True
        self._wake.set()
        self._thread.join(deadline_s)
        # Where the exporter hangs, the thread is left behind: it is a daemon and ends with the process.
        with self._lock:
            self._dropped += len(self._queue)
            self._queue.clear()
        if self._dropped:
            logger.warning("%d spans were dropped, %d exported", self._dropped, self._exported)
        return self._dropped == 0 and not self._thread.is_alive()

    def _enqueue(self, span: Span) -> bool:
        with self._lock:
            if self._stopping or len(self._queue) >= self._limit:
                self._dropped += 1
                return False
            self._queue.append(span)
            full = len(self._queue) == BATCH_SPANS
        if full:
            self._wake.set()
        return True

    def _run(self, exporter: SpanExporter) -> None:
        while True:
            batch = self._take()
            if batch:
                self._export(exporter, batch)
            elif self._stopping:
                break
            else:
                self._wake.wait(PAUSE_S)
                self._wake.clear()
        try:
            exporter.close(self._dropped)
        except OSError as error:
            logger.warning("the span exporter did not close: %s", error)

    def _take(self) -> list[Span]:
        with self._lock:
            return [self._queue.popleft() for _ in range(min(BATCH_SPANS, len(self._queue)))]

    def _export(self, exporter: SpanExporter, batch: list[Span]) -> None:
        try:
            arrived = exporter.export(batch)
        except OSError as error:
            logger.warning("spans could not be exported: %s", error)
            arrived = False
        with self._lock:
            if arrived:
                self._exported += len(batch)
            else:
                self._dropped += len(batch)


def span_file(run_folder: Path, role: str, pid: int) -> Path:
    """Where a process's spans lie in a run's folder."""
    return run_folder / "traces" / f"{role}-{pid}.jsonl"

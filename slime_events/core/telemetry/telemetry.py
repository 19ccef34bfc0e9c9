"""`Telemetry`: exports the spans of one process to an OTLP/HTTP endpoint, without blocking the process.

Without an endpoint a process makes no spans: they can be computed from the log at any time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

from schemas.doc import doc
from schemas.envelope import Envelope
from slime_events.core.telemetry.span_place import is_kept
from storage.event_block import HasEventBlocks
from storage.log import Append, CountsRefusals, EventLog

if TYPE_CHECKING:
    from slime_events.core.telemetry.exporters import FileExporter, OtlpExporter

logger = logging.getLogger(__name__)

QUEUE_SPANS = 20_000
"""Most events whose spans may wait, 20 MB at one kilobyte each. If there are more, the oldest are dropped."""
BATCH_SPANS = 512
PAUSE_S = 0.5


class Telemetry:
    """Hands events to the SDK's batch processor, whose thread exports their spans. Recording never blocks or raises.

    There is one per process; call `shutdown` at its end.
    """

    def __init__(
        self,
        exporter: FileExporter | OtlpExporter | None,
        share: float,
        *,
        queue_spans: int = QUEUE_SPANS,
    ) -> None:
        self._exporter, self._share = exporter, share if exporter else 0.0
        self._lock = threading.Lock()
        self._recorded, self._stopping = 0, False
        self.dropped = 0
        """Spans that did not arrive, after `shutdown`: full queue, failed exporter, or end of the process."""
        if exporter is not None:
            # Imported here: processes without traces save the time of the import.
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            from slime_events.core.telemetry.exporters import EventExporter, Queued

            self._queued, self._exporting = Queued, EventExporter(exporter, share)
            self._processor = BatchSpanProcessor(
                self._exporting,
                max_queue_size=queue_spans,
                schedule_delay_millis=PAUSE_S * 1000,
                max_export_batch_size=min(BATCH_SPANS, queue_spans),
            )

    @classmethod
    def start(cls, role: str, run: str, endpoint: str | None, share: float) -> Telemetry:
        """Start exporting spans to the OTLP/HTTP `endpoint`; nowhere without one.

        share: share of group traces that are kept, 0 to 1.
        """
        if share <= 0 or not endpoint:
            return cls(None, share)
        from slime_events.core.telemetry.exporters import OtlpExporter

        resource: dict[str, str | int] = {"service.namespace": "slime-events", "service.name": role}
        return cls(OtlpExporter(endpoint, resource | {"rl.run.id": run, "process.pid": os.getpid()}), share)

    @property
    def exported(self) -> int:
        """Spans that arrived."""
        return 0 if self._exporter is None else self._exporting.exported

    def record(self, envelopes: Iterable[Envelope]) -> int:
        """Record the spans that appended events end. Returns their number; all are exported unless the queue is full.

        The spans themselves are made by the thread that exports them.
        """
        if self._exporter is None:
            return 0
        ending = [envelope for envelope in envelopes if is_kept(envelope.run, envelope.event, self._share)]
        with self._lock:
            if self._stopping:
                self.dropped += len(ending)
                return 0
            self._recorded += len(ending)
        for envelope in ending:
            self._processor.on_end(self._queued(envelope))
        return len(ending)

    def shutdown(self, deadline_s: float = 5.0) -> bool:
        """Export queued spans. Returns whether all arrived within the deadline; the rest count as dropped."""
        with self._lock:
            if self._exporter is None or self._stopping:
                return self.dropped == 0
            self._stopping = True
        # The processor waits 30 s for an exporter that hangs. Its thread is a daemon and ends with the process.
        ending = threading.Thread(target=self._processor.shutdown, name="telemetry", daemon=True)
        ending.start()
        ending.join(deadline_s)
        with self._lock:
            self.dropped += self._recorded - self.exported
        if self.dropped:
            logger.warning("%d spans were dropped, %d exported", self.dropped, self.exported)
        if ending.is_alive():
            return False
        try:
            self._exporter.end(self.dropped)
            self._exporter.shutdown()
        except OSError as error:
            logger.warning("the span exporter did not close: %s", error)
        return self.dropped == 0


class Tracing(NamedTuple):
    """Arguments of `Telemetry.start` that are settings of the run."""

    endpoint: Annotated[str | None, doc("OTLP/HTTP endpoint; None: no spans are made")]
    share: Annotated[float, doc("share of group traces that are kept, 0 to 1")]


NO_TRACING = Tracing(None, 0.0)


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
        """Append events to the log, and record their spans if that succeeds.

        An event that another append has stored before has its span from there.
        """
        positions = await self._log.append(appends)
        # Let the next append go first: spans are recorded while the log stores it.
        asyncio.get_running_loop().call_soon(self._record, appends)
        return positions

    def _record(self, appends: Sequence[Append]) -> None:
        kept = {append.envelope.id: append.envelope for append in appends if not append.is_repeated}
        self._telemetry.record(kept.values())

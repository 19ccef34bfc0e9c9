"""Exporters of spans: to a file, or by the OpenTelemetry SDK to an OTLP/HTTP endpoint.

The import takes 0.1 s, so processes without traces do not import this module.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, ClassVar

import msgspec
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace import SpanContext as SdkContext

from schemas.envelope import Envelope
from schemas.references import expand
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.span import Span
from slime_events.core.telemetry.span_lines import span_lines

logger = logging.getLogger(__name__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
PORTION, REST_S = 4, 2e-4
"""Spans that are made without a rest, 0.1 ms of work with their lines, and the rest after them."""


class SpanConverter:
    """Makes finished spans of the SDK, with the ids and times of ours. resource: attributes of the process."""

    def __init__(self, resource: Mapping[str, str | int]) -> None:
        self._resource, self._scope = Resource(dict(resource)), InstrumentationScope("slime_events")

    def convert(self, span: Span) -> ReadableSpan:
        """Return the span. A tracer would need ten times as long: it makes unfinished spans and checks attributes."""
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace, span.span),
            parent=_context(span.trace, span.parent) if span.parent is not None else None,
            resource=self._resource,
            attributes=dict(span.attributes),
            links=[Link(_context(link.trace, link.span)) for link in span.links],
            kind=SpanKind.PRODUCER,
            status=Status(StatusCode.ERROR, span.error) if span.error is not None else Status(),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


def _context(trace: int, span_id: int) -> SdkContext:
    return SdkContext(trace, span_id, is_remote=False, trace_flags=_SAMPLED)


class FileExporter:
    """Writes JSON lines: `{"resource": ...}`, then OTLP JSON spans, then `{"dropped": n}`."""

    def __init__(self, file: BinaryIO, resource: Mapping[str, str | int]) -> None:
        self._file = file
        self._write({"resource": resource})

    def export(self, spans: Iterable[Span]) -> bool:
        """Append the spans in a single write, so that readers see whole lines. Returns True. Raises OSError."""
        self._file.write(span_lines(spans))
        return True

    def end(self, dropped: int) -> None:
        """Write the number of dropped spans."""
        self._write({"dropped": dropped})

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")


class OtlpExporter:
    """Sends spans by the SDK's OTLP/HTTP exporter.

    endpoint: with references to variables, with or without `/v1/traces`. resource: attributes of the process.
    Raises InvalidValue if a variable is not set.
    """

    TIMEOUT_S = 10.0

    def __init__(self, endpoint: str, resource: Mapping[str, str | int]) -> None:
        endpoint = expand(endpoint)
        url = endpoint if endpoint.endswith("/v1/traces") else endpoint.rstrip("/") + "/v1/traces"
        self._exporter, self._converter = (
            OTLPSpanExporter(endpoint=url, timeout=self.TIMEOUT_S),
            SpanConverter(resource),
        )

    def export(self, spans: Iterable[Span]) -> bool:
        """Return whether the spans arrived. Raises OSError, which means that they did not."""
        sent = self._exporter.export([self._converter.convert(span) for span in spans])
        return sent is SpanExportResult.SUCCESS

    def end(self, dropped: int) -> None:
        """Do nothing: OTLP has no place for the number of dropped spans. The process log has it."""

    def shutdown(self) -> None:
        """Close the connection. An export in progress ends without a further try."""
        self._exporter.shutdown()


class Queued(msgspec.Struct, frozen=True, gc=False):
    """An event in the queue of the SDK's processor, which asks only whether its span is sampled."""

    context: ClassVar[SdkContext] = SdkContext(1, 1, is_remote=False, trace_flags=_SAMPLED)
    envelope: Envelope


class EventExporter(SpanExporter):  # type: ignore[misc]  # the SDK has no types here
    """Exports the spans of events, and counts those that arrive. Its owner ends the exporter behind it.

    The processor's thread makes the spans, so a process only hands its events over. It rests after every few of them,
    because the process's other threads wait for the interpreter meanwhile, up to 5 ms each time. share: of group traces
    that are kept, as for `span_of`.
    """

    def __init__(self, exporter: FileExporter | OtlpExporter, share: float) -> None:
        self._exporter, self._share = exporter, share
        self.exported = 0

    def export(self, queue: Sequence[Queued]) -> SpanExportResult:
        count = 0

        def spans() -> Iterator[Span]:
            nonlocal count
            for number, queued in enumerate(queue, 1):
                if (span := span_of(queued.envelope, self._share)) is not None:
                    count += 1
                    yield span
                if not number % PORTION:
                    time.sleep(REST_S)

        try:
            arrived = self._exporter.export(spans())
        except OSError as error:
            logger.warning("spans could not be exported: %s", error)
            return SpanExportResult.FAILURE
        if not arrived:
            return SpanExportResult.FAILURE
        self.exported += count
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Do nothing."""

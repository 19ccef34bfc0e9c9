"""Where finished spans go: a file of the run, or an OTLP/HTTP endpoint. Called from one background thread."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from slime_events.core.telemetry.span import Span, SpanKind, to_otlp_json


class SpanExporter(Protocol):
    """Takes spans away."""

    def export(self, spans: Sequence[Span]) -> bool:
        """Whether they have arrived. OSError counts as no."""

    def close(self, dropped: int) -> None:
        """The last call. dropped: spans that never arrived."""


class FileExporter:
    """JSON lines: `{"resource": ...}`, then OTLP JSON spans, then `{"dropped": n}`."""

    def __init__(self, path: Path, resource: dict[str, str | int]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._write([{"resource": resource}])

    def export(self, spans: Sequence[Span]) -> bool:
        """Append them in one write, so that a reader sees whole lines."""
        self._write([to_otlp_json(span) for span in spans])
        return True

    def close(self, dropped: int) -> None:
        """End the file with what it lacks."""
        self._write([{"dropped": dropped}])
        self._file.close()

    def _write(self, lines: Sequence[dict[str, Any]]) -> None:
        self._file.write(msgspec.json.Encoder().encode_lines(lines))


class OtlpExporter:
    """OpenTelemetry's own OTLP/HTTP exporter, fed with spans whose ids and times are given."""

    TIMEOUT_S = 10.0

    def __init__(self, endpoint: str, resource: dict[str, str | int]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        url = endpoint if endpoint.endswith("/v1/traces") else endpoint.rstrip("/") + "/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint=url, timeout=self.TIMEOUT_S)
        self._resource, self._scope = Resource(resource), InstrumentationScope("slime_events")

    def export(self, spans: Sequence[Span]) -> bool:
        """Send them; the exporter itself retries for up to its time limit."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        return bool(self._exporter.export([self._convert(span) for span in spans]) is SpanExportResult.SUCCESS)

    def close(self, dropped: int) -> None:
        """Give up what is being retried."""
        self._exporter.shutdown()

    def _convert(self, span: Span) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags
        from opentelemetry.trace import SpanKind as OtelKind

        def context(trace: int, span_id: int) -> Any:
            return SpanContext(trace, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

        return ReadableSpan(
            name=str(span.name),
            context=context(span.trace, span.span),
            parent=context(span.trace, span.parent) if span.parent is not None else None,
            resource=self._resource,
            attributes=dict(span.attributes),
            links=[Link(context(link.trace, link.span)) for link in span.links],
            kind=OtelKind[SpanKind(span.kind).name],
            status=Status(StatusCode.ERROR, span.error) if span.error is not None else Status(),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


def resource_of(role: str, run: str) -> dict[str, str | int]:
    """What all spans of this process have in common."""
    return {"service.namespace": "slime-events", "service.name": role, "rl.run": run, "process.pid": os.getpid()}

"""A replacement for the OpenTelemetry collector, if its binary is not installed: counts spans and metrics.

    python -m deploy.check.collector --config collector.yaml

It reads its addresses from the collector's configuration, takes spans and metrics by OTLP over HTTP (protobuf), and
serves to Prometheus the metrics of the configured pipelines: gauges, calls and seconds of each kind of span, and the
collector's own counts. It writes the ids and the name of each span to the configured file. It has no batches, limits or
retries, so do not use it as a collector.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

NANO = 1e-9
Key = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a metric in Prometheus."""


class Counts:
    """Spans and metrics received since the start. file: gets a line with the spans of each request."""

    def __init__(self, file: Path) -> None:
        self._lock, self._file = threading.Lock(), file
        self.spans = self.points = 0
        self._gauges: dict[Key, tuple[int, float]] = {}
        self._calls, self._seconds = Counter[Key](), Counter[Key]()

    def take_spans(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        spans = [span for r in request.resource_spans for scope in r.scope_spans for span in scope.spans]
        named = [{"traceId": span.trace_id.hex(), "spanId": span.span_id.hex(), "name": span.name} for span in spans]
        with self._lock:
            with self._file.open("a") as file:
                file.write(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": named}]}]}) + "\n")
            for of_resource in request.resource_spans:
                service = next(a.value.string_value for a in of_resource.resource.attributes if a.key == "service.name")
                for span in (span for scope in of_resource.scope_spans for span in scope.spans):
                    self.spans += 1
                    labels = (("service_name", service), ("span_name", span.name))
                    self._calls["traces_span_metrics_calls_total", labels] += 1
                    took = (span.end_time_unix_nano - span.start_time_unix_nano) * NANO
                    self._seconds["traces_span_metrics_duration_seconds", labels] += took  # type: ignore[assignment]

    def take_metrics(self, body: bytes) -> None:
        request = ExportMetricsServiceRequest.FromString(body)
        with self._lock:
            for metric in (m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics):
                for point in metric.gauge.data_points:
                    self.points += 1
                    labels = tuple((_name(a.key), a.value.string_value) for a in point.attributes)
                    key = (_name(metric.name), labels)
                    value = point.as_double if point.WhichOneof("value") == "as_double" else float(point.as_int)
                    if point.time_unix_nano >= self._gauges.get(key, (0, 0.0))[0]:
                        self._gauges[key] = point.time_unix_nano, value

    def pipelines(self) -> str:
        """Return the metrics of the Prometheus exporter."""
        with self._lock:
            lines = [_line(name, labels, value) for (name, labels), (_, value) in self._gauges.items()]
            lines += [_line(name, labels, value) for (name, labels), value in self._calls.items()]
            for (name, labels), value in self._seconds.items():
                calls = self._calls["traces_span_metrics_calls_total", labels]
                lines += [_line(f"{name}_sum", labels, value), _line(f"{name}_count", labels, calls)]
        return "".join(lines)

    def own(self) -> str:
        """Return the metrics of the collector itself."""
        with self._lock:
            return _line("otelcol_receiver_accepted_spans_total", (), self.spans) + _line(
                "otelcol_receiver_accepted_metric_points_total", (), self.points
            )


def _name(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "_", text)


def _line(name: str, labels: tuple[tuple[str, str], ...], value: float) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in labels)
    return f"{name}{{{inside}}} {value}\n"


def _handler(get: dict[str, Callable[[], str]], post: dict[str, Callable[[bytes], None]]) -> type:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(get, lambda make: make().encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            self._answer(post, lambda take: take(body) or b"")

        def _answer(self, routes: dict[str, Any], act: Callable[[Any], bytes]) -> None:
            route = routes.get(self.path)
            data = act(route) if route else b""
            self.send_response(200 if route else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


def serve(config: dict[str, Any]) -> tuple[Counts, list[ThreadingHTTPServer]]:
    """Listen at the configured addresses, each in a thread; port 0 takes any free port."""
    counts = Counts(Path(config["exporters"]["file"]["path"]))
    otlp = config["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    own = config["service"]["telemetry"]["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"]
    places = [
        (otlp, _handler({}, {"/v1/traces": counts.take_spans, "/v1/metrics": counts.take_metrics})),
        (config["exporters"]["prometheus"]["endpoint"], _handler({"/metrics": counts.pipelines}, {})),
        (f"{own['host']}:{own['port']}", _handler({"/metrics": counts.own}, {})),
    ]
    servers = []
    for place, handler in places:
        host, _, port = place.rpartition(":")
        servers.append(ThreadingHTTPServer((host, int(port)), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
    return counts, servers


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m deploy.check.collector")
    parser.add_argument("--config", type=Path, required=True)
    serve(yaml.safe_load(parser.parse_args().config.read_text()))
    threading.Event().wait()


if __name__ == "__main__":
    main()

"""A stand-in for the OpenTelemetry collector, where no binary of it is to be had: it counts what it is sent.

    python -m deploy.check.collector --config collector.yaml

It reads where to listen from the collector's own configuration, takes spans and metrics by OTLP over HTTP (protobuf),
and gives to Prometheus what the configured pipelines would: the gauges, calls and seconds of each kind of span, and the
collector's own counts. Of each span it writes the ids and the name to the file of the configuration. It has no batches,
limits or retries, and is no collector.
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
"""A metric's name and labels, as Prometheus has them."""


class Counts:
    """What was taken since the start. file: where spans are written, a line for each request."""

    def __init__(self, file: Path) -> None:
        self._lock, self._file = threading.Lock(), file
        self.spans = self.points = 0
        self._gauges: dict[Key, tuple[int, float]] = {}
        self._calls, self._seconds = Counter[Key](), Counter[Key]()

    def take_spans(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        spans = [one for r in request.resource_spans for scope in r.scope_spans for one in scope.spans]
        named = [{"traceId": one.trace_id.hex(), "spanId": one.span_id.hex(), "name": one.name} for one in spans]
        with self._lock:
            with self._file.open("a") as file:
                file.write(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": named}]}]}) + "\n")
            for of_resource in request.resource_spans:
                service = next(a.value.string_value for a in of_resource.resource.attributes if a.key == "service.name")
                for span in (one for scope in of_resource.scope_spans for one in scope.spans):
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
        """Of the Prometheus exporter."""
        with self._lock:
            lines = [_line(name, labels, value) for (name, labels), (_, value) in self._gauges.items()]
            lines += [_line(name, labels, value) for (name, labels), value in self._calls.items()]
            for (name, labels), value in self._seconds.items():
                calls = self._calls["traces_span_metrics_calls_total", labels]
                lines += [_line(f"{name}_sum", labels, value), _line(f"{name}_count", labels, calls)]
        return "".join(lines)

    def own(self) -> str:
        """Of the collector itself."""
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
            there = routes.get(self.path)
            data = act(there) if there else b""
            self.send_response(200 if there else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


def serve(config: dict[str, Any]) -> tuple[Counts, list[ThreadingHTTPServer]]:
    """Listens where the configuration says, each in a thread; port 0 is any."""
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
    """Until it is killed."""
    parser = argparse.ArgumentParser(prog="python -m deploy.check.collector")
    parser.add_argument("--config", type=Path, required=True)
    serve(yaml.safe_load(parser.parse_args().config.read_text()))
    threading.Event().wait()


if __name__ == "__main__":
    main()

"""`collecting`: an OTLP/HTTP endpoint, and the spans that it got."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Requests to an endpoint, as they came."""

    def __init__(self, endpoint: str, requests: list[ExportTraceServiceRequest]) -> None:
        self.endpoint, self.requests = endpoint, requests

    @property
    def ids(self) -> list[tuple[int, int]]:
        """Trace and span ids, in the order of their arrival."""
        scopes = (scope for body in self.requests for resource in body.resource_spans for scope in resource.scope_spans)
        number = int.from_bytes
        return [(number(span.trace_id, "big"), number(span.span_id, "big")) for scope in scopes for span in scope.spans]


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Serve an endpoint on a free port."""
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
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Collector(f"http://127.0.0.1:{server.server_port}", got)
    finally:
        server.shutdown()
        server.server_close()

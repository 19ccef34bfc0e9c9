"""`OtlpLogger`: a run's metrics as gauges, sent to an OpenTelemetry collector by OTLP over HTTP."""

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from schemas.errors import StoreUnavailable
from schemas.references import expand
from slime_events.analysis.metrics.fold import MetricsRow
from slime_events.app.loggers.logger import LoggedRun

TIMEOUT_S = 30.0
RUN = "rl.run.id"
SCOPE = "slime_events"


class OtlpLogger:
    """Sends a point for each value, with the time of its event.

    A later process sends the run's points again from the first: they are equal, and a gauge keeps its newest point.
    endpoint: as in `--otlp-endpoint`; None for OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT`).
    """

    def __init__(self, endpoint: str | None, run: LoggedRun) -> None:
        url = None if endpoint is None else expand(endpoint).removesuffix("/v1/traces").rstrip("/") + "/v1/metrics"
        self._exporter = OTLPMetricExporter(endpoint=url, timeout=TIMEOUT_S)
        self._resource = Resource({"service.namespace": "slime-events", "service.name": "metrics", RUN: run.name})
        self._attributes, self._scope = {RUN: run.name}, InstrumentationScope(SCOPE)
        self.where = f"the collector at {endpoint or 'OTEL_EXPORTER_OTLP_ENDPOINT'}"

    def write(self, row: MetricsRow) -> None:
        metrics = [Metric(name, "", "", self._gauge(value, row.at)) for name, value in row.values.items()]
        scope = ScopeMetrics(self._scope, metrics, schema_url="")
        sent = self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], schema_url="")]))
        if sent is not MetricExportResult.SUCCESS:
            raise StoreUnavailable(
                f"{self.where} accepted no metrics: check that it is running and accepts them at /v1/metrics"
            )

    def close(self) -> None:
        self._exporter.shutdown()

    def _gauge(self, value: float, at: int) -> Gauge:
        return Gauge([NumberDataPoint(self._attributes, start_time_unix_nano=at, time_unix_nano=at, value=value)])

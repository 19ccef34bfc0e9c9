"""`RunAddress`: all that a process must be told to take part in a run."""

from __future__ import annotations

import msgspec

from slime_events.core.run.incarnation import Incarnation


class RunAddress(msgspec.Struct, frozen=True, kw_only=True):
    """URLs are fsspec's; folder is a local or shared path for logs, traces and checkpoints."""

    run: str
    nats_url: str
    folder: str
    blob_url: str
    archive_url: str
    archive_seconds: float = 10.0
    weights_url: str
    otlp_endpoint: str | None = None
    trace_share: float = 1.0
    incarnation: Incarnation = Incarnation()

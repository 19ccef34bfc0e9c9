"""Where a run lives and which servers it uses."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slime_events.core.config.base import Settings


class RunSettings(Settings, frozen=True, kw_only=True):
    """One folder holds everything a run leaves behind."""

    run: Annotated[str, Meta(description="name of the run: letters, digits, - and _")] = "train"
    runs_dir: Annotated[str, Meta(description="folder of all runs")] = "slime-runs"
    nats_url: Annotated[
        str | None,
        Meta(description="use this NATS server, or these nodes of a cluster, with commas; default: an embedded one"),
    ] = None
    nats_replicas: Annotated[
        int, Meta(description="copies of the log, each on another node of the NATS cluster: 3 survive the loss of one")
    ] = 1
    blob_url: Annotated[str | None, Meta(description="fsspec URL of large payloads; default: the run folder")] = None
    archive_url: Annotated[str | None, Meta(description="fsspec URL of the archive; default: the run folder")] = None
    archive_seconds: Annotated[
        float, Meta(description="seconds that the archive may lag behind the log: what is lost with the log's disk")
    ] = 10.0
    ray_address: Annotated[str | None, Meta(description="join this Ray cluster; default: a local one")] = None
    otlp_endpoint: Annotated[
        str | None, Meta(description="OTLP/HTTP endpoint for spans; default: a file in the run folder")
    ] = None
    trace_share: Annotated[float, Meta(description="share of groups that are traced, 0 to 1")] = 1.0
    max_deaths: Annotated[
        int, Meta(description="times that a role's process may die without the run moving on, before the run fails")
    ] = 5
    plain: Annotated[bool, Meta(description="a plain line per step even on a terminal")] = False

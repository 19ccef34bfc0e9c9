"""`RunAddress`: everything that a process needs to join a run."""

from typing import Annotated

import msgspec

from schemas.doc import doc
from slime_events.core.run.shared_places import SharedPlace
from storage.file_access import OWNER, FileAccess
from storage.jetstream.address import NatsAddress


class Incarnation(msgspec.Struct, frozen=True, kw_only=True):
    """A run from run.started or run.resumed to its end, or to the crash of all its processes.

    Each incarnation has its own queue, so requests that lost engines have leased are delivered at once instead of after
    their leases.
    """

    number: Annotated[int, doc("0 for the first incarnation, n after the n-th run.resumed")] = 0
    since: Annotated[int, doc("position of the event that began it")] = 0
    requests_from: Annotated[int, doc("first position at which a rollout.requested may be unanswered")] = 1

    @property
    def queue(self) -> str:
        """Name of the queue from which the engines take requests."""
        return queue_of(self.number)


def queue_of(number: int) -> str:
    """Return the queue of an incarnation by its number."""
    return f"engines-{number}" if number else "engines"


class RunAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Address of a run's log, storage and telemetry. URLs are fsspec URLs."""

    run: str
    nats: NatsAddress
    folder: Annotated[str, doc("local or shared path for logs, traces and checkpoints")]
    blob_url: str
    archive_url: str
    archive_seconds: Annotated[float, doc("how far the archive may lag behind the log")] = 10.0
    log_keep_steps: Annotated[int | None, doc("events of older steps may leave the log; None: all stay")] = None
    weights_url: str
    otlp_endpoint: str | None = None
    trace_share: Annotated[float, doc("share of groups that are traced, 0 to 1; above 0, failures always are")] = 1.0
    incarnation: Incarnation = Incarnation()
    secrets: Annotated[
        dict[str, str], doc("environment variables of URLs and settings, for a process on a machine without them")
    ] = {}
    shared: Annotated[tuple[SharedPlace, ...], doc("what each machine must see; empty on one machine")] = ()
    file_access: Annotated[FileAccess, doc("access to the files that the process writes")] = OWNER
    models: Annotated[
        dict[str, str], doc("host:port of the router of each model that is served beside the trained one, by name")
    ] = {}

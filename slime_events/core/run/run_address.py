"""`RunAddress`: all that a process needs to join a run."""

import msgspec

from storage.file_access import OWNER, FileAccess
from storage.jetstream.address import NatsAddress


class Incarnation(msgspec.Struct, frozen=True, kw_only=True):
    """A run from run.started or run.resumed to its end or to the crash of all its processes.

    number: 0 for the first, n after the n-th `run.resumed`. since: position of the event that began it. requests_from:
    the first position at which a rollout.requested may still be unanswered. Each incarnation has a queue of its own, so
    requests that lost engines hold are delivered at once instead of after their leases.
    """

    number: int = 0
    since: int = 0
    requests_from: int = 1

    @property
    def queue(self) -> str:
        """Name of the queue that the engines take requests from."""
        return queue_of(self.number)


def queue_of(number: int) -> str:
    """The queue of an incarnation by its number."""
    return f"engines-{number}" if number else "engines"


class RunAddress(msgspec.Struct, frozen=True, kw_only=True):
    """URLs are fsspec's; folder is a local or shared path for logs, traces and checkpoints. log_keep_steps: events of
    older steps may leave the log. secrets: environment variables that the URLs and settings refer to, for a process on
    a machine that has them not. file_access: of whatever the process writes.
    """

    run: str
    nats: NatsAddress
    folder: str
    blob_url: str
    archive_url: str
    archive_seconds: float = 10.0
    log_keep_steps: int | None = None
    weights_url: str
    otlp_endpoint: str | None = None
    trace_share: float = 1.0
    incarnation: Incarnation = Incarnation()
    secrets: dict[str, str] = {}
    file_access: FileAccess = OWNER

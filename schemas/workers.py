"""A worker: a process that participates in a run."""

from typing import Annotated

from schemas.doc import doc
from schemas.event import Event


class WorkerJoined(Event, frozen=True, kw_only=True, tag="worker.joined"):
    """Appended by each actor and engine when it is ready."""

    worker: Annotated[str, doc("Id of the worker, new at each start.")]
    role: Annotated[str, doc("Role, such as conductor, trainer or engine.")]
    pid: Annotated[int, doc("Process id on the machine `node`.")]
    node: Annotated[str, doc("Host name of the machine.")] = ""
    facts: Annotated[
        dict[str, str],
        doc("Facts about machine and process by name, such as the variables that make a trainer deterministic."),
    ] = {}
    seconds: Annotated[dict[str, float], doc("Seconds that starting took, by part.")] = {}


class WorkerLost(Event, frozen=True, kw_only=True, tag="worker.lost"):
    """Appended by any participant that notices that a worker is gone."""

    worker: Annotated[str, doc("Id of the worker, as in `worker.joined`.")]
    role: Annotated[str, doc("Role of the worker, as in `worker.joined`.")]
    reason: Annotated[str, doc("Explanation, one sentence.")]
    requests: Annotated[
        tuple[str, ...],
        doc(
            "Samples that may have caused the loss: those running on an engine that ended by itself, or the one that "
            "was being probed. Empty in older logs, and if the engine was ended from outside."
        ),
    ] = ()

"""A worker: a process that participates in a run."""

from schemas.event import Event


class WorkerJoined(Event, frozen=True, kw_only=True, tag="worker.joined"):
    """Each actor and engine, when it is ready. worker: its id, new at each start. seconds: of starting, by part.

    role: such as conductor, trainer or engine. pid: on the machine `node` (its host name). facts:
    about its machine and process, by name; of a deterministic trainer, the variables that make it so.
    """

    worker: str
    role: str
    pid: int
    node: str = ""
    facts: dict[str, str] = {}
    seconds: dict[str, float] = {}


class WorkerLost(Event, frozen=True, kw_only=True, tag="worker.lost"):
    """Any participant that notices that a worker is gone. worker, role: as it joined. reason: one sentence.

    requests: the samples that may be why: those under way at an engine that ended by itself, or the one of them that
    was tried. Absent in older logs, and where it was ended from outside.
    """

    worker: str
    role: str
    reason: str
    requests: tuple[str, ...] = ()

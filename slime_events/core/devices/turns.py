"""`DeviceTurns`: who holds the devices that trainer and engines use in turns, and who may take them. Folds the log.

    batch.sealed -> engines release -> the trainer takes -> step.committed -> the trainer releases -> engines take

The trainer holds the devices alone; engines hold them together. A trainer that starts asks for its turn with
device.wanted. Engines have the turn at all other times, after the first version is published.
"""

from dataclasses import dataclass
from typing import Annotated

from schemas.batches import BatchSealed
from schemas.devices import DeviceReleased, DeviceTaken, DeviceWanted, Side
from schemas.doc import doc
from schemas.runs import RunResumed
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from schemas.workers import WorkerLost
from storage.log import Recorded

DEVICE_EVENTS = (DeviceWanted, DeviceTaken, DeviceReleased)
"""Events on the subjects that a `device.taken` is fenced on."""
NEWEST = (BatchSealed, StepCommitted, WeightsPublished)
"""Events of which only the newest matters here."""
FOLDED = (*NEWEST, WorkerLost)
"""Types of events that the fold needs, besides those of the devices and of the run."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A worker that holds the devices."""

    side: Side
    number: Annotated[int, doc("Number of its `device.taken`.")]
    pid: Annotated[int, doc("Process id of the worker.")] = 0


class DeviceTurns:
    """The fold. `position` is that of the newest device event, on which a `device.taken` is fenced.

    An engine that is lost holds nothing: its processes have ended before its worker.lost is appended. A trainer that is
    lost holds the devices until the next trainer takes its place. An event of a lost worker that arrives later changes
    nothing. The same is true for workers of earlier incarnations, which a resumption ends.
    """

    def __init__(self) -> None:
        self.holders: dict[str, Holder] = {}
        self.position = 0
        self._incarnation = 0
        self._claimant = ""
        self._sealed, self._committed, self._published = -1, -1, -1
        self._lost: set[str] = set()

    def apply(self, recorded: Recorded) -> None:
        """Fold one event in. Events of other types are ignored."""
        event = recorded.envelope.event
        if isinstance(event, DEVICE_EVENTS):
            self.position = recorded.position
            self._apply_device(event)
            return
        match event:
            case BatchSealed():
                self._sealed = max(self._sealed, event.step)
            case StepCommitted():
                self._committed = max(self._committed, event.step)
            case WeightsPublished():
                self._published = max(self._published, event.version)
            case WorkerLost():
                self._lost.add(event.worker)
                if (holder := self.holders.get(event.worker)) and holder.side is Side.ENGINES:
                    del self.holders[event.worker]
            case RunResumed():
                self._incarnation, self._claimant = event.incarnation, ""
                self.holders, self._lost = {}, set()

    def _apply_device(self, event: DeviceWanted | DeviceTaken | DeviceReleased) -> None:
        if isinstance(event, DeviceReleased):
            if self.holds(event.worker, event.number):
                del self.holders[event.worker]
                self._claimant = "" if self._claimant == event.worker else self._claimant
        elif event.worker in self._lost or event.incarnation < self._incarnation:
            return
        elif isinstance(event, DeviceWanted):
            self._claimant = event.worker
        else:
            if event.side is Side.TRAINER:  # it takes the place of an earlier trainer
                self.holders = {name: holder for name, holder in self.holders.items() if holder.side is Side.ENGINES}
            self.holders[event.worker] = Holder(event.side, event.number, event.pid)

    @property
    def turn(self) -> Side:
        """The side that may take the devices next; the other side releases them."""
        needs_trainer = self._published < 0 or bool(self._claimant) or self._sealed > self._committed
        return Side.TRAINER if needs_trainer else Side.ENGINES

    def may_take(self, worker: str, side: Side) -> bool:
        """Return whether a worker that holds nothing may append `device.taken` now."""
        if self.turn is not side or worker in self._lost:
            return False
        return all(holder.side is side for holder in self.holders.values())

    def must_release(self, worker: str) -> bool:
        """Return whether a worker holds the devices although the other side has the turn."""
        holder = self.holders.get(worker)
        return holder is not None and holder.side is not self.turn

    def holds(self, worker: str, number: int) -> bool:
        """Return whether a worker's `device.taken` of this number is in force."""
        holder = self.holders.get(worker)
        return holder is not None and holder.number == number

    @property
    def others(self) -> list[str]:
        """Workers that hold the devices although the other side has the turn."""
        return [worker for worker, holder in self.holders.items() if holder.side is not self.turn]

"""Transfers and devices: who takes part in a broadcast of weights, and who holds the devices that a run shares."""

from schemas.devices import DeviceReleased, DeviceTaken, DeviceWanted, Side
from schemas.runs import RunResumed
from schemas.transfers import TransferBegun, TransferEnded, TransferJoined
from schemas.weights import WeightsActivated, WeightsCarrier
from schemas.workers import WorkerLost
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Ledger


class Transfers(Check):
    """Groups of engines that receive a version by a broadcast. A run without broadcasts has no such check."""

    name = "transfers"
    promise = "members had joined, each group ends once, engines run what theirs sent"
    only_if_seen = True

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._joined = dict[tuple[int, str], int]()
        self._members = set[tuple[int, str]]()
        self._open: TransferBegun | None = None
        self._groups = 0

    def _on_transfer_joined(self, event: TransferJoined) -> None:
        published = self.ledger.published.get(event.version)
        if published is None or published.carrier is not WeightsCarrier.COLLECTIVE:
            self.find(f"v{event.version} is not offered to groups", "the engine waits for what nobody sends")
        self._joined[event.version, event.engine] = event.ranks

    def _on_transfer_begun(self, event: TransferBegun) -> None:
        self.seen["groups"] = self.seen.get("groups", 0) + 1
        if event.epoch != self._groups + 1:
            wrong = f"its number is {event.epoch}, and the next one is {self._groups + 1}"
            self.find(wrong, "a group is missing or repeated")
        if self._open is not None:
            self.find(f"group {self._open.epoch} has not ended", "its members may still receive")
        ranks = [0]
        for engine, first in event.members.items():
            key = event.version, engine
            if key not in self._joined:
                self.find(f"{engine} has not joined for v{event.version}", "the group waits for who does not come")
            elif key in self._members:
                self.find(f"{engine} was in a group for v{event.version} before", "it does not come twice")
            ranks += range(first, first + self._joined.get(key, 1))
        if sorted(ranks) != list(range(event.world)):
            self.find(f"its members have the ranks {sorted(ranks)} of {event.world}", "the group cannot form")
        self._members |= {(event.version, engine) for engine in event.members}
        self._open, self._groups = event, event.epoch

    def _on_transfer_ended(self, event: TransferEnded) -> None:
        if self._open is None or self._open.epoch != event.epoch:
            self.find("no such group is open", "nobody knows which group ended")
            return
        self._open = None

    def _on_weights_activated(self, event: WeightsActivated) -> None:
        if event.carrier is not WeightsCarrier.COLLECTIVE:
            return
        self.seen["received"] = self.seen.get("received", 0) + 1
        if (event.version, event.engine) not in self._members:
            self.find(f"no group sent v{event.version} to {event.engine}", "the origin of its weights is unknown")


class Devices(Check):
    """Devices that trainer and engines hold in turns. It folds the events itself, apart from `DeviceTurns`. A run
    without turns has no such check.
    """

    name = "devices"
    promise = "trainer and engines never hold them together, a trainer has asked first"
    only_if_seen = True

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._holders = dict[str, tuple[Side, int]]()
        self._claims, self._lost = set[str](), set[str]()
        self._taken = set[tuple[str, int]]()
        self._incarnation = 0

    def _on_run_resumed(self, event: RunResumed) -> None:
        self._holders.clear()
        self._lost.clear()
        self._incarnation = event.incarnation

    def _on_worker_lost(self, event: WorkerLost) -> None:
        """Free an engine's place. A trainer's stays until the next trainer takes it: its ranks may end later."""
        self._lost.add(event.worker)
        if self._holders.get(event.worker, (None, 0))[0] is Side.ENGINES:
            del self._holders[event.worker]

    def _on_device_wanted(self, event: DeviceWanted) -> None:
        self._claims.add(event.worker)

    def _on_device_taken(self, event: DeviceTaken) -> None:
        self.seen["taken"] = self.seen.get("taken", 0) + 1
        self._taken.add((event.worker, event.number))
        if event.worker in self._lost or event.incarnation < self._incarnation:
            return  # it arrived late, and changes nothing
        if event.side is Side.TRAINER:
            if event.worker not in self._claims:
                self.find("this trainer has not asked for its turn", "engines do not know that they must release")
            self._holders = {name: held for name, held in self._holders.items() if held[0] is not Side.TRAINER}
        others = [name for name, (side, _) in self._holders.items() if side is not event.side]
        if others:
            self.find(f"{others[0]} holds the devices", "two sides use the same memory")
        self._holders[event.worker] = event.side, event.number

    def _on_device_released(self, event: DeviceReleased) -> None:
        if (event.worker, event.number) not in self._taken:
            self.find("no device.taken has its number", "nobody knows whether the memory is free")
        elif self._holders.get(event.worker) == (event.side, event.number):
            del self._holders[event.worker]

"""Groups that receive weights, and devices in turns. The clean log has neither, so each row appends them all."""

from __future__ import annotations

from functools import partial

from schemas.devices import DeviceReleased, DeviceTaken, DeviceWanted, Side
from schemas.event import Event
from schemas.transfers import TransferBegun, TransferEnded, TransferJoined, TransferOutcome
from schemas.weights import WeightsCarrier
from schemas.workers import WorkerLost
from tests import made
from tests.audit.doctored import Doctored, Record
from tests.audit.doctoring import Doctor, Doctoring, the

PUBLISHED = the("weights.published", version=1)
TRAINER, ENGINES = Side.TRAINER, Side.ENGINES


def appended(*events: Event, carrier: WeightsCarrier = WeightsCarrier.COLLECTIVE) -> Doctor:
    """Append events behind version 1. The last of them is the touched record."""

    def doctor(log: Doctored) -> list[Record]:
        last = PUBLISHED(log)
        last.event["carrier"] = carrier.value
        for event in events:
            last = log.say(event, last)
        log.renumber()
        return [last]

    return doctor


def joined(engine: str, ranks: int = 1, version: int = 1) -> Event:
    return TransferJoined(version=version, engine=engine, ranks=ranks)


def begun(epoch: int = 1, world: int = 2, version: int = 1, **members: int) -> Event:
    return TransferBegun(epoch=epoch, version=version, address="h", port=1, members=members, world=world)


def ended(epoch: int = 1) -> Event:
    return TransferEnded(epoch=epoch, outcome=TransferOutcome.SENT)


def received(engine: str, version: int = 1) -> Event:
    return made.activated(version, engine, carrier=WeightsCarrier.COLLECTIVE)


def claim(worker: str, incarnation: int = 0) -> Event:
    return DeviceWanted(worker=worker, incarnation=incarnation)


def taken(worker: str, side: Side, number: int = 0, incarnation: int = 0) -> Event:
    return DeviceTaken(worker=worker, side=side, number=number, incarnation=incarnation)


def released(worker: str, side: Side, number: int = 0) -> Event:
    return DeviceReleased(worker=worker, side=side, number=number)


def lost(worker: str, role: str = "engine") -> Event:
    return WorkerLost(worker=worker, role=role, reason="killed")


GROUP = (joined("a", 2), joined("b"), begun(world=4, a=1, b=3))
TURN = (claim("t"), taken("t", TRAINER))
group, device = partial(Doctoring, "transfers"), partial(Doctoring, "devices")
TABLE = (
    group("a group that sends", appended(*GROUP, received("a"), ended(), received("b")), located=(),
          counts={"groups": 1, "received": 2}),
    group("the next group of a version", appended(*GROUP, ended(), joined("c"), begun(2, c=1), ended(2)), located=()),
    group("a join for a version by files", appended(joined("a"), carrier=WeightsCarrier.FILES), names=("v1",)),
    group("a join for no version", appended(joined("a", version=99)), names=("v99",)),
    group("a member that has not joined", appended(joined("a"), begun(world=3, a=1, b=2)), names=("b", "v1")),
    group("a member that has joined for another version", appended(joined("a"), begun(version=2, a=1)),
          names=("a", "v2")),
    group("a member twice", appended(*GROUP, ended(), begun(2, world=3, a=1)), names=("a",)),
    group("a second group before the end", appended(*GROUP, joined("c"), begun(2, c=1)), names=(1,)),
    group("a group with the number of another", appended(*GROUP, ended(), joined("c"), begun(1, c=1)), names=(1, 2)),
    group("a rank that two members have", appended(*GROUP[:2], begun(world=4, a=1, b=2))),
    group("a rank that nobody has", appended(joined("a"), begun(world=3, a=1))),
    group("an end without a group", appended(ended())),
    group("a second end", appended(*GROUP, ended(), ended())),
    group("an end of another group", appended(*GROUP, ended(2))),
    group("an engine of no group", appended(*GROUP, received("c")), names=("v1", "c")),
    group("another version than the group's", appended(*GROUP, received("a", 2)), names=("v2", "a")),
    device("turns", appended(*TURN, released("t", TRAINER), taken("a", ENGINES), taken("b", ENGINES),
                             released("a", ENGINES), released("b", ENGINES), taken("t", TRAINER, 1)),
           located=(), counts={"taken": 4}),
    device("engines beside the trainer", appended(*TURN, taken("a", ENGINES)), names=("t",)),
    device("the trainer beside an engine", appended(taken("a", ENGINES), *TURN), names=("a",)),
    device("a release of an earlier turn", appended(
        *TURN, released("t", TRAINER), taken("t", TRAINER, 1), released("t", TRAINER), taken("a", ENGINES))),
    device("a lost engine", appended(taken("a", ENGINES), lost("a"), *TURN), located=()),
    device("a lost engine beside another", appended(
        taken("a", ENGINES), taken("b", ENGINES), lost("a"), *TURN), names=("b",)),
    device("an engine after a lost trainer", appended(*TURN, lost("t", "trainer"), taken("a", ENGINES)), names=("t",)),
    device("the next trainer", appended(*TURN, lost("t", "trainer"), claim("u"), taken("u", TRAINER)), located=()),
    device("a place that a lost engine takes late", appended(lost("a"), taken("a", ENGINES), *TURN), located=()),
    device("a resumption", appended(*TURN, made.resumed(2), taken("a", ENGINES, incarnation=2)), located=()),
    device("a place of an earlier incarnation", appended(
        made.resumed(2), taken("a", ENGINES, incarnation=1), claim("t", 2), taken("t", TRAINER, incarnation=2)),
        located=()),
    device("a trainer that has not asked", appended(taken("t", TRAINER)),),
    device("a release of nothing", appended(released("a", ENGINES, 3))),
)  # fmt: skip

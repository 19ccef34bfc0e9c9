"""All interleavings of a small run whose trainer and engines use a device in turns."""

from __future__ import annotations

from collections import defaultdict

import pytest

from schemas.devices import DeviceReleased, DeviceTaken, DeviceWanted, Side
from schemas.event import Event
from schemas.workers import WorkerLost
from slime_events.core.devices.turns import DeviceTurns
from tests import made
from tests.devices.small_model import Edge, SmallModel, World


def folded(*events: Event) -> DeviceTurns:
    turns = DeviceTurns()
    for recorded in made.recorded(*events):
        turns.apply(recorded)
    return turns


def taken(worker: str, side: Side, number: int = 0) -> DeviceTaken:
    return DeviceTaken(worker=worker, side=side, number=number)


@pytest.mark.parametrize(
    ("engines", "steps", "kills", "resumptions"),
    [
        (1, 2, 0, 0),
        (2, 1, 0, 0),
        (1, 1, 1, 0),
        (1, 1, 0, 1),
        pytest.param(1, 2, 1, 0, marks=pytest.mark.soak),
        pytest.param(2, 2, 0, 0, marks=pytest.mark.soak),
    ],
)
def test_never_both_and_never_stuck(engines: int, steps: int, kills: int, resumptions: int) -> None:
    """From every state that can be reached, the run ends without a further accident."""
    model = SmallModel(engines, steps, kills, resumptions)
    before, seen, todo, done = defaultdict[World, list[World]](list), {model.start}, [model.start], list[World]()
    while todo:
        world = todo.pop()
        assert not model.is_mixed(world), f"both sides use the device: {world}"
        if model.is_done(world):
            done.append(world)
            continue
        for edge, after in model.moves(world):
            if edge is Edge.FAIR:
                before[after].append(world)
            if after not in seen:
                seen.add(after)
                todo.append(after)
    ends = set(done)
    while done:
        for world in before[done.pop()]:
            if world not in ends:
                ends.add(world)
                done.append(world)
    stuck = seen - ends
    assert not stuck, f"{len(stuck)} of {len(seen)} states are stuck, such as {min(stuck, key=lambda w: len(w.log))}"


def test_a_late_release_does_not_end_the_next_trainers_turn() -> None:
    begun = (made.published(), DeviceWanted(worker="t1"), taken("t1", Side.TRAINER), DeviceWanted(worker="t2"))
    turns = folded(*begun, DeviceReleased(worker="t1", side=Side.TRAINER, number=0))
    assert turns.turn is Side.TRAINER
    assert turns.may_take("t2", Side.TRAINER)
    assert not turns.may_take("e", Side.ENGINES)


def test_an_engine_that_is_lost_frees_its_place_and_a_trainer_does_not() -> None:
    lost = [WorkerLost(worker=name, role=name, reason="killed") for name in ("e", "t")]
    sealed = (made.published(), taken("e", Side.ENGINES), made.sealed(0))
    assert not folded(*sealed).may_take("t", Side.TRAINER)
    assert folded(*sealed, lost[0]).may_take("t", Side.TRAINER)
    assert not folded(made.published(), taken("t", Side.TRAINER), lost[1]).may_take("e", Side.ENGINES)
    assert not folded(made.published(), lost[0], taken("e", Side.ENGINES)).holders


def test_a_trainer_does_not_take_the_place_of_an_engine() -> None:
    turns = folded(made.published(), taken("e", Side.ENGINES), made.sealed(0), taken("t", Side.TRAINER))
    assert set(turns.holders) == {"e", "t"}

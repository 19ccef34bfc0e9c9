"""The state is a fold: equal logs are equal states, and no byte of a log can differ without being seen."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import decode, encode
from schemas.event import Purpose
from schemas.prompts import PromptRejected, Source
from schemas.runs import RunFailed
from schemas.turns import TurnBegun, TurnRole
from schemas.workers import WorkerJoined
from slime_events.core.run.participant import is_over
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunPhase, RunState, state_digest
from storage.log import Recorded
from tests import made
from tests.conductor.driver import Driver, dropping, make_plan


def fold(log: list[Recorded]) -> RunState:
    """From nothing but positions and bytes."""
    state = RunState(run="drive")
    for recorded in log:
        apply(state, Recorded(recorded.position, recorded.subject, decode(recorded.data), recorded.data))
    return state


@pytest.fixture(scope="module")
def driver() -> Driver:
    plan = make_plan(steps=3, max_staleness=1, in_prompt_order=False, eval_every=2, eval_names=("held",))
    driver = Driver(plan, dropping(0.3))
    chance = random.Random(7)
    driver.play(chance, engine_fails=0.1, ungraded=0.02)
    for sample in list(driver.requests)[:3]:
        driver.begin(sample)
    return driver


def test_a_fold_from_the_beginning_is_the_live_state(driver: Driver) -> None:
    folded = fold(driver.log)
    assert folded == driver.state
    assert state_digest(folded) == state_digest(driver.state)
    assert folded.events == len(driver.log)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_other_byte_is_another_digest(driver: Driver, data: st.DataObject) -> None:
    """Whatever the byte means: the chain is over the record as it was written."""
    log = list(driver.log)
    at = data.draw(st.integers(0, len(log) - 1))
    byte = data.draw(st.integers(0, len(log[at].data) - 1))
    changed = bytearray(log[at].data)
    changed[byte] ^= data.draw(st.integers(1, 255))
    log[at] = msgspec.structs.replace(log[at], data=bytes(changed))
    state = RunState(run="drive")
    for recorded in log:
        apply(state, recorded)
    assert state_digest(state) != state_digest(driver.state)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_missing_or_swapped_event_is_another_digest(driver: Driver, data: st.DataObject) -> None:
    chain = []
    for at in range(len(driver.log)):
        chain.append(driver.log[at].data)
    at = data.draw(st.integers(0, len(chain) - 2))
    if data.draw(st.booleans()):
        del chain[at]
    else:
        chain[at], chain[at + 1] = chain[at + 1], chain[at]
    state = RunState(run="drive")
    for position, bytes_ in enumerate(chain, 1):
        # An event that does not change the state, so that only its place in the chain tells.
        event = PromptRejected(source=Source(path="f", line=position), reason="r", dataset="x")
        envelope = msgspec.structs.replace(driver.log[0].envelope, event=event)
        apply(state, Recorded(position, "s", envelope, bytes_))
    whole = RunState(run="drive")
    for position, recorded in enumerate(driver.log, 1):
        apply(whole, Recorded(position, "s", envelope, recorded.data))
    assert state.chain != whole.chain


@pytest.mark.parametrize("upto", [0.1, 0.5, 0.9, 1.0])
def test_through_msgpack_and_on(driver: Driver, upto: float) -> None:
    """Continue with a stored and loaded state exactly as with the original."""
    half = int(upto * len(driver.log))
    packed = msgspec.msgpack.encode(fold(driver.log[:half]))
    state = msgspec.msgpack.decode(packed, type=RunState)
    assert state == fold(driver.log[:half])
    for recorded in driver.log[half:]:
        apply(state, recorded)
    assert state_digest(state) == state_digest(driver.state)


def test_a_sealed_batch_is_part_of_the_digest() -> None:
    """A run that is interrupted while the trainer works ends with a digest too."""
    driver = Driver(make_plan(steps=2, groups=1, samples=1))
    driver.finish_group("g0000")
    driver.settle()
    assert driver.state.sealed.keys() == {0}
    before = state_digest(driver.state)
    driver.state.sealed[0].digest = "other"
    assert state_digest(driver.state) != before


def test_states_share_nothing() -> None:
    first, other = RunState(run="a"), RunState(run="a")
    first.waiting.append("g")
    first.cursors["f"] = 1
    first.counts.checkpoints += 1
    assert other == RunState(run="a")


def test_an_evaluation_moves_no_cursor() -> None:
    """It may read the very file that training reads."""
    driver = Driver(make_plan())
    before = dict(driver.state.cursors)
    driver.say(PromptRejected(source=Source(path="f", line=99, offset=98), reason="r", dataset="held"))
    assert driver.state.cursors == before
    driver.say(PromptRejected(source=Source(path="f", line=99, offset=98), reason="r"))
    assert driver.state.cursors == {"f": 99}


def test_what_brings_a_run_on() -> None:
    driver = Driver(make_plan())
    assert driver.state.moved == 2, "the weights; requests alone are no progress"
    driver.begin("g0000-s0")
    assert driver.state.moved == len(driver.log)
    assert {group.purpose for group in driver.state.groups.values()} == {Purpose.TRAIN}


MOVING = {
    "rollout.progressed", "rollout.completed", "rollout.failed", "reward.assigned", "reward.failed", "group.accepted",
    "group.rejected", "batch.sealed", "step.committed", "weights.published", "weights.activated", "eval.completed",
    "checkpoint.saved", "turn.begun", "turn.recorded",
}  # fmt: skip


def test_which_events_bring_a_run_on() -> None:
    """All but those that may pile up while nobody works, and those that only say who is there."""
    driver = Driver(make_plan(steps=2, eval_every=1, eval_names=("held",), checkpoint_every=1, max_attempts=2))
    driver.play(random.Random(3), engine_fails=0.2, ungraded=0.1)
    turn = TurnBegun(sample="s", index=0, role=TurnRole.ASSISTANT, asked="a", engine="e")
    driver.say(turn)
    driver.say(made.turn("s", asked="a"))
    driver.say(made.activated(seconds=0.0))
    driver.say(WorkerJoined(worker="e", role="engine", pid=1))
    driver.say(made.resumed())
    state, seen = RunState(run="drive"), dict[str, set[bool]]()
    for recorded in driver.log:
        apply(state, recorded)
        seen.setdefault(recorded.envelope.type, set()).add(state.moved == recorded.position)
    assert {kind for kind, moves in seen.items() if moves == {True}} == MOVING
    assert {kind for kind, moves in seen.items() if moves == {False}} == seen.keys() - MOVING


def test_the_newest_placement_is_kept_and_brings_nothing_on() -> None:
    driver = Driver(make_plan())
    before, digest = driver.state.moved, state_digest(driver.state)
    assert driver.state.placement is msgspec.UNSET
    assert "placement" not in msgspec.to_builtins(driver.state)
    for incarnation in (0, 1):
        driver.say(made.placement(incarnation))
        assert driver.state.placement == made.placement(incarnation)
    assert driver.state.moved == before
    assert state_digest(driver.state) != digest


def test_ends_and_resumptions() -> None:
    driver = Driver(make_plan())
    failed = RunFailed(role="trainer", reason="no room")
    driver.say(failed)
    assert (driver.state.phase, driver.state.failure) == (RunPhase.FAILED, "no room")
    resumed = made.resumed()
    driver.say(resumed)
    assert (driver.state.phase, driver.state.failure) == (RunPhase.RUNNING, "")
    finished = made.finished("all_steps")
    over = False
    for event, expected in ((failed, True), (resumed, False), (finished, True), (PromptRejected, True)):
        over = is_over(over, event)  # type: ignore[arg-type]
        assert over is expected


def test_bytes_are_what_was_said(driver: Driver) -> None:
    assert all(encode(recorded.envelope) == recorded.data for recorded in driver.log)


def test_a_run_that_has_said_nothing_has_no_version() -> None:
    state = RunState(run="new")
    assert (state.version, state.published, state.next_step, state.weights_digest) == (-1, -1, 0, "")

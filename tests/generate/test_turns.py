"""Rollouts of several turns, without trouble."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.arrays import unpack
from schemas.event import Event
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutProgressed, StopReason
from schemas.steps import StepCommitted
from schemas.turns import TurnBegun, TurnRecorded, TurnRole
from slime_events.core.telemetry.current_span import current_span
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.span import SpanContext
from tests.generate import functions
from tests.generate.scene import ONE, a_run, check_log, events, setup
from tests.simulation.parts import InstantPool, ScriptedRanks
from tests.simulation.simulation import make_plan


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    functions.CALLS.clear()


async def test_a_rollout_of_two_turns_and_a_tool(tmp_path: Path) -> None:
    run = a_run(tmp_path, "two_turns")
    await run.run()
    check_log(run)
    (committed,) = events(run, StepCommitted)
    first, tool, second = events(run, TurnRecorded)
    assert [turn.role for turn in (first, tool, second)] == [TurnRole.ASSISTANT, TurnRole.TOOL, TurnRole.ASSISTANT]
    assert [turn.index for turn in (first, tool, second)] == [0, 1, 2]
    assert (first.extends, second.extends) == (None, 0)
    result_text = str(tool.result)
    assert unpack(second.observed).tolist() == [ord(letter) for letter in result_text]
    (done,) = events(run, RolloutCompleted)
    generated, observed = 10, len(result_text)
    assert done.length == generated + observed + generated
    assert done.loss_mask is not None
    mask = unpack(done.loss_mask)
    assert mask.tolist() == [1] * generated + [0] * observed + [1] * generated
    assert (unpack(done.log_probs)[mask == 0] == 0).all()
    assert (unpack(done.log_probs)[mask == 1] < 0).all()
    assert [(span.start, span.end) for span in done.spans] == [(0, generated), (generated + observed, done.length)]
    assert done.stop is StopReason.LENGTH
    assert result_text in done.text
    assert functions.CALLS.total() == 1
    assert committed.tokens == done.prompt_length + done.length


async def test_work_has_the_span_that_its_event_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of a user's function, a grader and a trainer have the ids of the exported span, in any thread."""
    seen = dict[type[Event], SpanContext | None]()

    def noted(kind: type[Event], function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **more: Any) -> Any:
            seen[kind] = current_span()
            return function(*args, **more)

        return call

    for owner, name, kind in (
        (functions, "look_up", RolloutCompleted),
        (InstantPool, "grade", RewardAssigned),
        (ScriptedRanks, "train", StepCommitted),
    ):
        monkeypatch.setattr(owner, name, noted(kind, getattr(owner, name)))
    run = a_run(tmp_path, "two_turns")
    await run.run()
    spans = {type(r.envelope.event): span_of(r.envelope) for r in run.log.records}
    assert seen == {kind: span.context for kind in seen if (span := spans[kind])}
    assert len(seen) == 3


async def test_tools_of_all_rollouts_run_side_by_side(tmp_path: Path) -> None:
    plan = make_plan(steps=1, groups=1, samples=functions.MANY)
    run = a_run(tmp_path, setup("meets", timeout_s=60.0), plan)
    await run.run()
    assert [tool.result for tool in events(run, TurnRecorded, role=TurnRole.TOOL)] == [True] * functions.MANY
    assert len(events(run, StepCommitted)) == 1


async def test_what_is_trained_on_is_what_was_generated(tmp_path: Path) -> None:
    run = a_run(tmp_path, "two_turns")
    await run.run()
    (done,) = events(run, RolloutCompleted)
    tokens, log_probs = unpack(done.tokens), unpack(done.log_probs)
    assert done.loss_mask is not None
    mask = unpack(done.loss_mask)
    chunks = {turn: [] for turn in (0, 2)}
    for chunk in events(run, RolloutProgressed):
        assert chunk.turn is not None
        chunks[chunk.turn].append((unpack(chunk.tokens), unpack(chunk.log_probs)))
    for turn in events(run, TurnRecorded, role=TurnRole.ASSISTANT):
        chunks[turn.index].append((unpack(turn.tokens), unpack(turn.log_probs)))
    pieces = [piece for turn in (0, 2) for piece in chunks[turn]]
    np.testing.assert_array_equal(np.concatenate([piece for piece, _ in pieces]), tokens[mask == 1])
    np.testing.assert_array_equal(np.concatenate([piece for _, piece in pieces]), log_probs[mask == 1])
    assert {begun.index for begun in events(run, TurnBegun)} == {0, 1, 2}


async def test_the_same_run_twice_ends_on_the_same_weights(tmp_path: Path) -> None:
    plan = ONE.__class__(steps=2, groups=2, samples=2, sampling=ONE.sampling)
    digests = []
    for number in range(2):
        run = a_run(tmp_path / str(number), "two_turns", plan)
        await run.run()
        digests.append([event.weights_digest for event in events(run, StepCommitted)])
    assert digests[0] == digests[1]

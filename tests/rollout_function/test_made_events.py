"""A rollout function's groups as events: in their order, with all of each sample, and failed where they must be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from schemas.arrays import unpack
from schemas.prompts import PromptSubmitted, Source
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import FailureKind, Place, RolloutCompleted, RolloutFailed, RolloutRequested, WeightSpan
from serve_apps.rollouts.generate.journal import EndedTurn
from serve_apps.rollouts.rollout_function.outcome import Outcome, OutcomeContext, outcome_of
from serve_apps.rollouts.rollout_function.recorded_turns import MadeTurn, MadeTurns
from slime_events.plugins.sample import Sample, Status
from storage.log import MAX_EVENT_BYTES
from tests.made import submitted, turn
from tests.simulation.parts import Letters
from tests.simulation.simulation import make_plan

DRAWN = submitted(text="ab", tokens=[97, 98], source=Source(path="p"), label="l", metadata={"k": 1})


def making(**changes: Any) -> OutcomeContext:
    function: Any = SimpleNamespace(name="own.function", digest="d")
    fields: dict[str, Any] = {"version": 6, "order": 10, "offset": 20}
    return OutcomeContext(function, make_plan(samples=2), MadeTurns(2), Letters(), "w", **fields | changes)


def sample(tokens: Any = (97, 98, 99), **fields: Any) -> Sample:
    sample_ = Sample(tokens=list(tokens), response_length=1, status=Status.COMPLETED, reward=1.0, response="c")
    vars(sample_).update(fields)
    return sample_


def outcome_of_groups(groups: list[list[Any]], prompts: Any = None, numbers: Any = None, **changes: Any) -> Outcome:
    return outcome_of(groups, prompts or {}, numbers or {}, making(**changes))


def flat(outcome: Outcome, kind: Any = object) -> list[Any]:
    return [event for together in outcome.events for event in together if isinstance(event, kind)]


def test_a_drawn_group_is_answered_under_its_own_name() -> None:
    outcome = outcome_of_groups([[sample(session_id="g-s0"), sample()]], {"g": DRAWN})
    assert outcome.groups == ["g"]
    assert [type(event) for event in flat(outcome)] == [
        RolloutRequested, RolloutRequested, RolloutCompleted, RewardAssigned, RolloutCompleted, RewardAssigned
    ]  # fmt: skip
    assert [len(together) for together in outcome.events] == [1, 1, 2, 2]
    first, second = flat(outcome, RolloutRequested)
    assert [(event.sample, event.group, event.index) for event in (first, second)] == [
        ("g-s0", "g", 0),
        ("g-s1", "g", 1),
    ]
    assert [event.place for event in (first, second)] == [Place(20, 10), Place(21, 10)]
    assert (first.min_version, first.function, first.prompt) == (6, "own.function", DRAWN.tokens)
    assert first.seed != second.seed
    (done, _) = flat(outcome, RolloutCompleted)
    assert (done.sample, done.prompt, done.functions, done.engine) == ("g-s0", None, {"own.function": "d"}, "w")
    assert (done.place, done.length, done.text) == (Place(20, 10), 1, "c")


def test_groups_of_its_own_have_numbers_of_their_own() -> None:
    outcome = outcome_of_groups([[sample()], [sample(session_id="g-s0")], [sample(prompt="xy", label=3)]], {"g": DRAWN})
    first, second = flat(outcome, PromptSubmitted)
    assert outcome.groups == [first.group, "g", second.group]
    assert [event.source for event in (first, second)] == [
        Source(path="own.function", row=offset, offset=offset) for offset in (20, 21)
    ]
    assert (first.text, second.text, second.label, second.dataset) == ("ab", "xy", 3, first.dataset)
    assert [event.place for event in flat(outcome, RolloutRequested)] == [Place(20, 10), Place(22, 11), Place(24, 12)]
    assert unpack(first.tokens).tolist() == [97, 98]


def test_a_group_that_comes_twice_is_its_own_the_second_time() -> None:
    outcome = outcome_of_groups([[sample(session_id="g-s0")], [sample(session_id="g-s0")]], {"g": DRAWN})
    assert outcome.groups[0] == "g"
    assert outcome.groups[1] == flat(outcome, PromptSubmitted)[0].group


def test_a_brought_chat_is_shown_as_messages() -> None:
    chat = [{"role": "user", "content": "?"}]
    (submitted,) = flat(
        outcome_of_groups([[sample(prompt=chat, metadata={"a": (1,)}, custom_rm_path="own.rm")]]), PromptSubmitted
    )
    assert (submitted.messages, submitted.chat, submitted.text) == (chat, True, "ab")
    assert (submitted.metadata, submitted.custom_rm_path) == ({"a": [1]}, "own.rm")
    (plain,) = flat(outcome_of_groups([[sample(prompt="")]]), PromptSubmitted)
    assert (plain.messages, plain.chat, plain.text, plain.custom_rm_path) == (None, False, "ab", "")


@pytest.mark.parametrize("label", [object(), "x" * MAX_EVENT_BYTES])
def test_a_prompt_that_cannot_be_recorded_fails_its_samples(label: Any) -> None:
    outcome = outcome_of_groups([[sample(label=label), sample()]])
    (submitted,) = flat(outcome, PromptSubmitted)
    assert (submitted.text, submitted.tokens.n, submitted.source.offset) == ("", 0, 20)
    failed = flat(outcome, RolloutFailed)
    assert [(event.sample, event.kind, event.engine) for event in failed] == [
        (f"{submitted.group}-s{index}", FailureKind.INVALID, "w") for index in range(2)
    ]
    assert not flat(outcome, RolloutCompleted)


def test_a_sample_that_is_too_large_for_the_log_fails_alone() -> None:
    most = MAX_EVENT_BYTES - 1024 * 1024 - 4096
    outcome = outcome_of_groups([[sample(response="x" * most), sample(response="x" * (most - 2000))]], {"g": DRAWN}, {})
    assert [event.sample.rpartition("-")[2] for event in flat(outcome, RolloutFailed)] == ["s0"]
    assert [event.sample.rpartition("-")[2] for event in flat(outcome, RolloutCompleted)] == ["s1"]
    long = sample([97] * 400_000, response_length=200_000, rollout_log_probs=[-1.0] * 200_000)
    assert not flat(outcome_of_groups([[long]]), RolloutFailed), "arrays go into the blob store"


def test_further_samples_of_a_rollout_come_before_it() -> None:
    outcome = outcome_of_groups([[[sample(session_id="g-s0"), sample([97, 98, 100])]]], {"g": DRAWN})
    assert [event.sample for event in flat(outcome)[1:]] == ["g-s0-1", "g-s0-1", "g-s0", "g-s0"]
    further, first = flat(outcome, RolloutCompleted)
    assert (further.rollout, first.rollout) == ("g-s0", "")


def test_tokens_of_generations_keep_their_versions() -> None:
    context = making()
    event = turn("c", spans=(WeightSpan(0, 1, 4),))
    ended = EndedTurn(event, np.array([99], np.int32), np.array([-0.5], np.float32))
    context.turns.add(MadeTurn(np.array([97, 98], np.int32), ended, "call-1"), 0)
    own, foreign = sample(session_id="g-s0"), sample([97, 98, 100])
    (done, other) = flat(outcome_of([[own, foreign]], {"g": DRAWN}, {}, context), RolloutCompleted)
    assert (done.calls, done.spans, unpack(done.log_probs).tolist()) == (("call-1",), (WeightSpan(0, 1, 4),), [-0.5])
    assert (other.calls, other.spans, done.loss_mask, other.loss_mask) == ((), (), None, None)


@pytest.mark.parametrize(
    ("reward", "changes", "expected"),
    [
        (2.0, {}, 2.0),
        ({"a": 3.0}, {"reward_key": "a"}, 3.0),
        ("x", {}, None),
        (None, {"ungraded": 0.5}, 0.5),
    ],
)
def test_a_reward_is_the_function_s_or_that_of_the_ungraded(reward: Any, changes: Any, expected: float | None) -> None:
    (event,) = flat(outcome_of_groups([[sample(reward=reward)]], **changes), RewardAssigned | RewardFailed)
    assert (event.grader, event.grader_digest) == ("own.function", "d")
    assert getattr(event, "value", None) == expected


def test_without_a_reward_the_run_s_grader_is_asked() -> None:
    assert not flat(outcome_of_groups([[sample(reward=None)]]), RewardAssigned | RewardFailed)


@pytest.mark.parametrize("wrong", [{"response_length": 0}, {"status": 3}, {"response": None}, {"loss_mask": [2]}])
def test_a_sample_that_cannot_be_read_fails_alone(wrong: dict[str, Any]) -> None:
    outcome = outcome_of_groups([[sample(**wrong), sample()]], {"g": replace(DRAWN, group="other")})
    (failed,) = flat(outcome, RolloutFailed)
    (done,) = flat(outcome, RolloutCompleted)
    assert (failed.sample[-1], done.sample[-1], failed.attempt) == ("0", "1", 0)


@pytest.mark.parametrize("field", ["response_length", "status", "response"])
def test_the_field_that_cannot_be_read_is_named(field: str) -> None:
    (failed,) = flat(outcome_of_groups([[sample(session_id="g-s0", **{field: None})]], {"g": DRAWN}), RolloutFailed)
    assert f"sample.{field} is None" in failed.message

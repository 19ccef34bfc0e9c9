"""A session that is sealed, as events: its samples, their rewards, or why it is not trained on."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from schemas.arrays import unpack
from schemas.rewards import RewardAssigned
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, StopReason, WeightSpan
from schemas.sessions import Credit, SealReason, SessionSealed
from schemas.turns import TurnRecorded
from serve_apps.rollouts.agents.live_session import LiveSession
from serve_apps.rollouts.agents.sealing import Sealing, Verdict, sealed, verdict_of, why_not_trained
from slime_events.algorithms.credit import CreditRule
from slime_events.core.sessions.session import OpenTurn
from tests import made
from tests.agents.stage import TOKENIZER
from tests.agents.test_live_sessions import live_of, recorded

ASKED = made.submitted(text="?", metadata={"own": 1})
SECOND = 10**9
RUN = Sealing(ASKED, np.array([1], np.int32), CreditRule(), TOKENIZER, "gw", grades=True, now=5 * SECOND)


def turn(index: int, extends: int | None, observed: list[int], generated: list[int], **more: Any) -> TurnRecorded:
    return replace(recorded(index, extends, observed, generated), text=f"t{index}", **more)


FOREST = (turn(0, None, [1, 2], [3, 4]), turn(1, 0, [5], [6]), turn(2, 0, [7], [8, 9]))


def live(*turns: TurnRecorded, open_: int = 0) -> LiveSession:
    session = live_of(*turns)
    session.folded.opened_at = 2 * SECOND
    session.folded.open |= {7 + number: OpenTurn(7 + number, "k", 0) for number in range(open_)}
    return session


def ended(session: LiveSession, verdict: Verdict, run: Sealing = RUN) -> list[Any]:
    return sealed(session.folded, session.turns(), verdict, run)


def with_(**more: Any) -> Sealing:
    return dataclasses.replace(RUN, **more)


@pytest.mark.parametrize(
    ("reward", "rewards", "exit_code", "reason"),
    [
        (1.0, {}, None, SealReason.REWARD),
        (0.0, {}, 0, SealReason.REWARD),
        (None, {0: 1.0}, None, SealReason.REWARD),
        (None, {}, 0, SealReason.EXIT),
        (1.0, {}, 3, SealReason.EXIT),
        (None, {}, 3, SealReason.EXIT),
    ],
)
def test_a_verdict(reward: float | None, rewards: dict[int, float], exit_code: int | None, reason: SealReason) -> None:
    verdict = verdict_of(reward, rewards, exit_code, {"a": 1})
    assert verdict == Verdict(reason, reward, rewards, exit_code, {"a": 1})
    assert verdict.reward_of(0) == rewards.get(0, reward)
    assert verdict.reward_of(9) == reward


def test_the_seal_says_what_was_sealed() -> None:
    verdict = Verdict(SealReason.REWARD, 1.0, {1: 0.5}, 0, {"m": 1})
    seal, *_ = ended(live(*FOREST, open_=1), verdict, with_(credit=CreditRule(Credit.DISCOUNTED, 0.5)))
    assert seal == SessionSealed(
        sample="g-s0",
        attempt=1,
        reason=SealReason.REWARD,
        gateway="gw",
        exit_code=0,
        reward=1.0,
        rewards={1: 0.5},
        leaves=(2, 1),
        orphans=(7,),
        credit=Credit.DISCOUNTED,
        metadata={"m": 1},
        turns=3,
        seconds=3.0,
        discount=0.5,
    )


def test_each_path_is_a_sample_and_has_its_reward() -> None:
    _, *events = ended(live(*FOREST), Verdict(SealReason.REWARD, 1.0, {1: 0.5}))
    other, first, of_other, of_first = events
    assert [type(event) for event in events] == [RolloutCompleted] * 2 + [RewardAssigned] * 2
    assert (first.sample, other.sample) == ("g-s0", "g-s0-1")
    assert [(event.sample, event.value, event.grader, event.grader_digest) for event in (of_first, of_other)] == [
        ("g-s0", 1.0, "harness:t", ""),
        ("g-s0-1", 0.5, "harness:t", ""),
    ]
    assert unpack(first.tokens).tolist() == [3, 4, 7, 8, 9]
    assert unpack(other.tokens).tolist() == [3, 4, 5, 6]
    assert unpack(first.log_probs).tolist() == [-1, -1, 0, -1, -1]
    assert unpack(first.loss_mask).tolist() == [1, 1, 0, 1, 1]
    assert unpack(other.loss_mask).tolist() == [0, 0, 0, 1], "its first turn is trained on in the other"
    assert (first.prompt_length, first.engine, first.timings.generating) == (2, "gw", 3.0)
    assert (first.credit, other.credit) == (None, None)
    shown = TOKENIZER.decode([7], skip_special_tokens=False)
    assert first.text == f"t0{shown}t2"
    end = int(TOKENIZER.eos_token_id)
    _, special, *_ = ended(live(FOREST[0], turn(1, 0, [end], [6])), Verdict(SealReason.REWARD, 1.0))
    assert special.text == f"t0{TOKENIZER.eos_token}t1", "as the model was shown it"


def test_tokens_keep_the_weights_that_made_them() -> None:
    """Wherever their turns stand behind what was observed."""
    turns = (
        turn(0, None, [1, 2], [3, 4], spans=(WeightSpan(0, 1, 6), WeightSpan(1, 2, 7))),
        turn(1, 0, [5], [6, 7], spans=(WeightSpan(0, 2, 8),)),
        turn(2, 1, [8, 9, 3], [4], spans=(WeightSpan(0, 1, 9),)),
    )
    _, completed, *_ = ended(live(*turns), Verdict(SealReason.REWARD, 1.0))
    assert unpack(completed.tokens).tolist() == [3, 4, 5, 6, 7, 8, 9, 3, 4]
    spans = [(span.start, span.end, span.version) for span in completed.spans]
    assert spans == [(0, 1, 6), (1, 2, 7), (3, 5, 8), (8, 9, 9)]


def test_what_counts_less_is_in_the_credit() -> None:
    _, other, first, *_ = ended(
        live(*FOREST), Verdict(SealReason.REWARD, 1.0), with_(credit=CreditRule(Credit.DISCOUNTED, 0.5))
    )
    assert unpack(first.credit).tolist() == [0.5, 0.5, 0, 1, 1]
    assert unpack(other.credit).tolist() == [0.5, 0.5, 0, 1]


@pytest.mark.parametrize(
    ("stop", "reason", "cut"),
    [
        (StopReason.STOP, SealReason.REWARD, False),
        (StopReason.LENGTH, SealReason.REWARD, True),
        (StopReason.STOP, SealReason.TIME, True),
        (StopReason.STOP, SealReason.IDLE, False),
    ],
)
def test_a_sample_that_was_cut(stop: StopReason, reason: SealReason, cut: bool) -> None:
    """Cut a sample by its last turn alone, or by the time of its session."""
    first = turn(0, None, [1], [3], stop=StopReason.LENGTH)
    _, completed = ended(live(first, turn(1, 0, [5], [6], stop=stop)), Verdict(reason))
    assert (completed.stop is StopReason.LENGTH) is cut


def test_metadata_of_the_harness_is_the_samples() -> None:
    (_, with_more), (_, without) = (
        ended(live(FOREST[0]), Verdict(SealReason.EXIT, metadata=more)) for more in ({"a": 1}, {})
    )
    assert with_more.metadata == {"a": 1}
    assert without.metadata == {}


HARNESS = Verdict(SealReason.REWARD, 1.0)


@pytest.mark.parametrize("open_", [0, 2])
def test_turns_that_were_under_way_are_counted_where_none_ended(open_: int) -> None:
    _, failed = ended(live(open_=open_), HARNESS)
    assert isinstance(failed, RolloutFailed)
    assert re.findall(r"\d+ in progress", failed.message) == ([f"{open_} in progress"] if open_ else [])


@pytest.mark.parametrize(
    ("verdict", "turns", "grades", "trained"),
    [
        (HARNESS, FOREST, True, True),
        (HARNESS, FOREST, False, True),
        (HARNESS, (), True, False),
        (Verdict(SealReason.EXIT, exit_code=0), FOREST, True, True),
        (Verdict(SealReason.EXIT, exit_code=3), FOREST, True, False),
        (Verdict(SealReason.EXIT, 1.0, exit_code=3), FOREST, True, False),
        (Verdict(SealReason.OVER), FOREST, True, False),
        (Verdict(SealReason.IDLE), FOREST, True, True),
        (Verdict(SealReason.IDLE), FOREST, False, False),
        (Verdict(SealReason.REWARD, None, {1: 1.0}), FOREST, False, False),
        (Verdict(SealReason.REWARD, None, {1: 1.0, 2: 0.0}), FOREST, False, True),
    ],
)
def test_whether_it_is_trained_on(verdict: Verdict, turns: Any, grades: bool, trained: bool) -> None:
    seal, *events = ended(live(*turns), verdict, with_(grades=grades))
    assert isinstance(seal, SessionSealed)
    if trained:
        assert any(isinstance(event, RolloutCompleted) for event in events)
        assert not any(isinstance(event, RolloutFailed) for event in events)
    else:
        (failed,) = events
        assert (failed.sample, failed.group, failed.attempt) == ("g-s0", "g", 1)
        assert (failed.kind, failed.engine) == (FailureKind.AGENT, "gw")
        assert "\n" not in failed.message


@pytest.mark.parametrize("reason", [SealReason.IDLE, SealReason.TIME, SealReason.REWARD])
def test_an_idle_session_fails_where_the_run_says_so(reason: SealReason) -> None:
    for fails in (True, False):
        _, *events = ended(live(*FOREST), Verdict(reason), with_(fails_idle=fails))
        assert isinstance(events[0], RolloutFailed) is (fails and reason is SealReason.IDLE)


@pytest.mark.parametrize(("error", "shown"), [("no disk", True), ("", False), (5, False)])
def test_why_a_program_failed_is_said(error: Any, shown: bool) -> None:
    verdict = Verdict(SealReason.EXIT, exit_code=3, metadata={"error": error})
    why = why_not_trained(live(*FOREST).folded, verdict, [2], grades=True)
    assert ("no disk" in why, why.endswith("3")) == (shown, not shown)

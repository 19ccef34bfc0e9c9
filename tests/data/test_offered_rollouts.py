"""Rollouts that were made outside: what becomes of an offer, once its sample is asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from actors.offered_rollouts import OfferedRollouts, is_offered, spans_of
from schemas.arrays import EMPTY_LOG_PROBS, pack, pack_log_probs, pack_tokens, unpack
from schemas.ids import INBOX
from schemas.recorded import CommonVersion, Recalled
from schemas.rewards import RewardAssigned
from schemas.rollouts import Origin, RolloutCompleted, RolloutOffered, StopReason, WeightSpan
from slime_events.core.state.group import GroupState, SampleState
from slime_events.core.tokens.trajectory import content_digest
from slime_events.loop.conductor.draw import ReusedRollout
from tests import made

RECALLED = Recalled(run="r", samples=("g-s0", "g-s1"), common=CommonVersion(0, 0), oldest=3, bound=2)
TOKENS, LOG_PROBS = [5, 6, 7, 8], [-1.0, -2.0, -3.0, -4.0]


def due(index: int = 1, attempt: int = 4, **group: Any) -> ReusedRollout:
    fields = {"recalled": RECALLED, "source_path": INBOX, "order": 6} | group
    state = GroupState(group="g", prompt=pack_tokens([1, 2]), **fields)
    return ReusedRollout(state, SampleState(sample=f"g-s{index}", attempt=attempt), RECALLED, f"g-s{index}")


def offer(**more: Any) -> RolloutOffered:
    fields: dict[str, Any] = {"sample": "g-s1", "group": "g", "tokens": pack_tokens(TOKENS), "text": "t", "version": 3}
    fields |= {"stop": StopReason.LENGTH, "log_probs": pack_log_probs(LOG_PROBS), "metadata": {"a": 1}}
    return RolloutOffered(**(fields | more))


async def answers(offered: RolloutOffered, *requests: ReusedRollout) -> list[Any]:
    log = await made.log(offer(sample="z-s0"), offered)
    return list(await OfferedRollouts(log, "worker", unpack).answers(requests))


async def test_an_offer_answers_its_sample() -> None:
    (completed,) = await answers(offer(), due(0), due())
    spans = (WeightSpan(0, 4, 3),)
    assert msgspec.structs.asdict(completed) == msgspec.structs.asdict(
        RolloutCompleted(
            sample="g-s1",
            group="g",
            attempt=4,
            start=0,
            length=4,
            prompt_length=2,
            stop=StopReason.LENGTH,
            text="t",
            spans=spans,
            digest=content_digest(np.array(TOKENS, np.int32), np.array(LOG_PROBS, np.float32)),
            engine="worker",
            tokens=pack_tokens(TOKENS),
            log_probs=pack_log_probs(LOG_PROBS),
            metadata={"a": 1},
            origin=Origin("r", "g-s1", 2, spans),
            place=due().place,
        )
    )


async def test_what_is_not_trained_has_no_log_probs() -> None:
    mask = pack([0, 1, 0, 1], "int8")
    (completed,) = await answers(offer(loss_mask=mask), due())
    assert completed.loss_mask == mask
    assert unpack(completed.log_probs).tolist() == [0.0, -2.0, 0.0, -4.0]
    assert completed.spans == (WeightSpan(1, 2, 3), WeightSpan(3, 4, 3))
    assert completed.digest == content_digest(unpack(completed.tokens), unpack(completed.log_probs))


async def test_an_offer_without_log_probs_is_of_no_weights() -> None:
    (completed,) = await answers(offer(log_probs=EMPTY_LOG_PROBS), due())
    assert unpack(completed.log_probs).tolist() == [0.0] * 4
    assert completed.spans == completed.origin.spans == ()


@pytest.mark.parametrize(("sender", "grader"), [("", "outside"), ("team", "outside:team")])
async def test_a_reward_comes_with_it(sender: str, grader: str) -> None:
    for value in (0.0, 1.5):
        completed, reward = await answers(offer(reward=value, sender=sender), due())
        assert isinstance(completed, RolloutCompleted)
        assert reward == RewardAssigned(sample="g-s1", group="g", value=value, grader=grader, grader_digest="")


async def test_what_was_not_made_outside_is_not_answered() -> None:
    others = [due(source_path="file"), due(recalled=msgspec.UNSET)]
    assert [is_offered(group) for group in (due(), *others)] == [True, False, False]
    assert await answers(offer(), *others) == []
    assert await answers(offer()) == []
    assert await answers(offer(), due(0)) == []


@pytest.mark.parametrize(
    ("mask", "spans"),
    [([1, 1], [(0, 2)]), ([0, 0], []), ([], []), ([0, 1, 1, 0, 1], [(1, 3), (4, 5)]), ([1, 0, 2], [(0, 1), (2, 3)])],
)
def test_spans_are_the_runs_of_trained_tokens(mask: list[int], spans: list[tuple[int, int]]) -> None:
    assert spans_of(np.array(mask, np.int8), 7) == tuple(WeightSpan(start, end, 7) for start, end in spans)

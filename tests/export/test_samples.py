"""Samples out of a log as soon as their fate is known: all that is exported of each, and what is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from schemas.arrays import pack, pack_log_probs, pack_tokens, unpack
from schemas.batches import BatchSealed
from schemas.event import Event, Purpose
from schemas.groups import GroupRejected, RejectionCause
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailureKind
from schemas.rollouts import RolloutCompleted, RolloutRequested
from slime_events.analysis.export.sample import ExportedSample, Fate
from slime_events.analysis.export.samples import FollowedSamples, Samples
from tests import made
from tests.cli.small_run import BATCHES, GROUPS, REJECTED, RUN, events

SAMPLE = f"{GROUPS[0]}-s1"


def exported(said: Sequence[Event]) -> list[ExportedSample]:
    samples = Samples(RUN, unpack)
    return [one for position, event in enumerate(said, 1) for one in samples.apply(event, position)]


def one(said: Sequence[Event], name: str = SAMPLE) -> ExportedSample:
    (found,) = [sample for sample in exported(said) if sample.sample == name]
    return found


def changed(kind: type[Event], name: str = SAMPLE, **fields: Any) -> list[Event]:
    """The small run, one event of which has these fields."""

    def is_it(event: Event) -> bool:
        return isinstance(event, kind) and name in (getattr(event, "sample", ""), getattr(event, "group", ""))

    return [replace(event, **fields) if is_it(event) else event for event in events()]


def test_each_sample_is_there_once_with_its_fate() -> None:
    found = exported(list(events()))
    trained = [one.sample for one in found if one.fate is Fate.TRAINED]
    assert trained == [f"{group}-s{index}" for batch in BATCHES for group in batch for index in range(2)]
    assert [(one.sample, one.step, one.reason) for one in found if one.fate is Fate.REJECTED] == [
        (f"{REJECTED}-s{index}", None, "zero_std_0.0") for index in range(2)
    ]
    assert {(one.step, one.run) for one in found if one.fate is Fate.TRAINED} == {(0, RUN), (1, RUN)}


def test_all_of_a_sample_is_exported() -> None:
    found = one(list(events()))
    assert (found.group, found.rollout, found.index, found.dataset, found.step) == (GROUPS[0], "", 1, "train", 0)
    assert (found.prompt, found.label, found.source, found.line) == (f"What is {GROUPS[0]}?", "42", "train.jsonl", 1)
    assert found.messages == [{"role": "user", "content": f"What is {GROUPS[0]}?"}]
    assert (found.tokens, found.prompt_length, found.response_length) == ([1, 2, 3, 10, 11, 12], 3, 3)
    assert (found.log_probs, found.loss_mask) == ([-0.5, -0.25, -0.125], [1, 1, 1])
    assert found.spans[-1][1] == 3
    assert (found.stop, found.reward, found.advantage_input, found.reason) == ("stop", 1.0, 1.0, None)
    assert (found.group_prompt, found.teacher_log_probs, found.tools, found.metadata) == (None, None, None, {})


def test_a_prompt_of_its_own_stands_before_the_group_s() -> None:
    own = one(changed(RolloutCompleted, prompt=pack_tokens([7, 8]), prompt_text="own", prompt_length=2))
    assert (own.prompt, own.messages, own.tokens[:2], own.prompt_length) == ("own", None, [7, 8], 2)
    assert own.group_prompt == [{"role": "user", "content": f"What is {GROUPS[0]}?"}]
    said = changed(RolloutCompleted, prompt=pack_tokens([7]), prompt_text="own")
    text = [replace(e, messages=None) if isinstance(e, PromptSubmitted) else e for e in said]
    assert one(text).group_prompt == f"What is {GROUPS[0]}?"


def test_what_a_function_left_goes_before_the_prompt_s() -> None:
    found = one(changed(RolloutCompleted, attributes={"label": "mine", "metadata": {"a": 1}}))
    assert (found.label, found.metadata) == ("mine", {"a": 1})


@pytest.mark.parametrize(("removed", "mask"), [((SAMPLE,), [0, 0, 0]), ((), [0, 1, 1])])
def test_a_mask_is_the_batch_s_or_the_rollout_s(removed: tuple[str, ...], mask: list[int]) -> None:
    said = changed(RolloutCompleted, loss_mask=pack([0, 1, 1], "int8"))
    told = [replace(e, removed=removed) if isinstance(e, BatchSealed) and e.step == 0 else e for e in said]
    assert one(told).loss_mask == mask
    assert one(told, f"{GROUPS[0]}-s0").loss_mask == [1, 1, 1]


def test_rewards_have_their_detail_and_their_teacher() -> None:
    taught = pack_log_probs(np.array([-1.0, -2.0, -3.0], np.float32))
    found = one(changed(RewardAssigned, detail={"a": 1}, teacher_log_probs=taught))
    assert (found.reward, found.reward_detail, found.teacher_log_probs) == (1.0, {"a": 1}, [-1.0, -2.0, -3.0])


def test_a_sample_without_a_reward_has_none() -> None:
    failed = made.reward_failed(f"{REJECTED}-s1", RewardFailureKind.TIMEOUT)
    said = [
        failed if isinstance(event, RewardAssigned) and event.sample == f"{REJECTED}-s1" else event
        for event in events()
    ]
    found = one(said, f"{REJECTED}-s1")
    assert (found.reward, found.reward_detail, found.advantage_input) == (None, None, None)


def evaluation(version: int, dataset: str) -> list[Event]:
    """The first group as an evaluation's, and its end."""
    said: list[Event] = []
    for event in events():
        if isinstance(event, BatchSealed):
            break
        if isinstance(event, PromptSubmitted) and event.group == GROUPS[0]:
            event = replace(event, purpose=Purpose.EVAL, dataset="held", version=3)
        said.append(event)
    end = made.evaluated(version, dataset=dataset, mean_length=3, oldest_version=3, newest_version=3)
    return [*said, end]


@pytest.mark.parametrize(("version", "dataset", "count"), [(3, "held", 2), (4, "held", 0), (3, "other", 0)])
def test_an_evaluation_s_samples_are_those_of_its_version_and_set(version: int, dataset: str, count: int) -> None:
    found = [sample for sample in exported(evaluation(version, dataset)) if sample.fate is Fate.EVALUATED]
    assert [(sample.sample, sample.step) for sample in found] == [(f"{GROUPS[0]}-s{n}", 3) for n in range(count)]


def test_generations_of_a_function_and_late_answers_are_no_samples() -> None:
    said = list(events())
    request = next(event for event in said if isinstance(event, RolloutRequested))
    done = next(event for event in said if isinstance(event, RolloutCompleted))
    call, late = replace(request, purpose=Purpose.CALL, sample="call-a-s0", group="call-a"), replace(done)
    whole = exported(said)
    assert exported([*said[:6], call, replace(done, sample="call-a-s0", group="call-a"), *said[6:], late]) == whole


def test_what_is_decided_is_forgotten() -> None:
    samples = Samples(RUN, unpack)
    for position, event in enumerate(events(), 1):
        samples.apply(event, position)
    assert (samples._run.groups, samples._run.samples, samples._trajectories.by_sample) == ({}, {}, {})


def test_a_group_that_nobody_knows_is_rejected_without_samples() -> None:
    assert exported([GroupRejected(group="none", cause=RejectionCause.FILTER, reason="x")]) == []


def followed(batches: dict[int, BatchSealed]) -> list[ExportedSample]:
    one = FollowedSamples("learner", Samples("learner", unpack), batches)
    return [sample for position, event in enumerate(events(), 1) for sample in one.apply(event, position)]


def test_a_learner_s_batches_take_the_place_of_the_other_s() -> None:
    first, second = (event for event in events() if isinstance(event, BatchSealed))
    mine = replace(first, groups=first.groups[:1], samples=first.samples[:1], rewards=(0.25,), raw_rewards=(7.0,))
    found = followed({0: mine})
    trained = [one for one in found if one.fate is Fate.TRAINED]
    assert [(one.sample, one.reward, one.advantage_input, one.run) for one in trained] == [
        (first.samples[0], 7.0, 0.25, "learner")
    ]
    rejected = {one.group: one.reason for one in found if one.fate is Fate.REJECTED}
    assert set(rejected) == {REJECTED, first.groups[1]}
    assert rejected[REJECTED] == "zero_std_0.0"
    assert found[-1].fate is Fate.TRAINED
    other = followed({1: second})
    assert [(one.sample, one.fate) for one in other] == [(name, Fate.TRAINED) for name in second.samples]


def test_evaluations_of_the_other_run_are_left_out() -> None:
    samples = FollowedSamples("learner", Samples("learner", unpack), {})
    assert [one for p, event in enumerate(evaluation(3, "held"), 1) for one in samples.apply(event, p)] == []


def test_a_group_that_the_learner_takes_though_the_other_refused_it_is_trained() -> None:
    first = next(event for event in events() if isinstance(event, BatchSealed))
    name = f"{REJECTED}-s0"
    mine = replace(first, groups=(REJECTED,), samples=(name,), rewards=(0.25,), raw_rewards=(7.0,))
    found = followed({0: mine})
    assert [(one.sample, one.reward) for one in found if one.fate is Fate.TRAINED] == [(name, 7.0)]
    assert {one.group for one in found if one.fate is Fate.REJECTED} == set(first.groups)

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


def exported(events_: Sequence[Event]) -> list[ExportedSample]:
    samples = Samples(RUN, unpack)
    return [sample for position, event in enumerate(events_, 1) for sample in samples.apply(event, position)]


def one_sample(events_: Sequence[Event], name: str = SAMPLE) -> ExportedSample:
    (sample_,) = [sample for sample in exported(events_) if sample.sample == name]
    return sample_


def changed(kind: type[Event], name: str = SAMPLE, **fields: Any) -> list[Event]:
    """The small run, one event of which has these fields."""

    def is_it(event: Event) -> bool:
        return isinstance(event, kind) and name in (getattr(event, "sample", ""), getattr(event, "group", ""))

    return [replace(event, **fields) if is_it(event) else event for event in events()]


def test_each_sample_is_there_once_with_its_fate() -> None:
    samples = exported(list(events()))
    trained = [sample.sample for sample in samples if sample.fate is Fate.TRAINED]
    assert trained == [f"{group}-s{index}" for batch in BATCHES for group in batch for index in range(2)]
    assert [(sample.sample, sample.step, sample.reason) for sample in samples if sample.fate is Fate.REJECTED] == [
        (f"{REJECTED}-s{index}", None, "zero_std_0.0") for index in range(2)
    ]
    assert {(sample.step, sample.run) for sample in samples if sample.fate is Fate.TRAINED} == {(0, RUN), (1, RUN)}


def test_all_of_a_sample_is_exported() -> None:
    sample = one_sample(list(events()))
    assert (sample.group, sample.rollout, sample.index, sample.dataset, sample.step) == (GROUPS[0], "", 1, "train", 0)
    assert (sample.prompt, sample.label, sample.source, sample.line) == (
        f"What is {GROUPS[0]}?",
        "42",
        "train.jsonl",
        1,
    )
    assert sample.messages == [{"role": "user", "content": f"What is {GROUPS[0]}?"}]
    assert (sample.tokens, sample.prompt_length, sample.response_length) == ([1, 2, 3, 10, 11, 12], 3, 3)
    assert (sample.log_probs, sample.loss_mask) == ([-0.5, -0.25, -0.125], [1, 1, 1])
    assert sample.spans[-1][1] == 3
    assert (sample.stop, sample.reward, sample.advantage_input, sample.reason) == ("stop", 1.0, 1.0, None)
    assert (sample.group_prompt, sample.teacher_log_probs, sample.tools, sample.metadata) == (None, None, None, {})


def test_a_prompt_of_its_own_stands_before_the_group_s() -> None:
    own = one_sample(changed(RolloutCompleted, prompt=pack_tokens([7, 8]), prompt_text="own", prompt_length=2))
    assert (own.prompt, own.messages, own.tokens[:2], own.prompt_length) == ("own", None, [7, 8], 2)
    assert own.group_prompt == [{"role": "user", "content": f"What is {GROUPS[0]}?"}]
    events_ = changed(RolloutCompleted, prompt=pack_tokens([7]), prompt_text="own")
    text = [replace(e, messages=None) if isinstance(e, PromptSubmitted) else e for e in events_]
    assert one_sample(text).group_prompt == f"What is {GROUPS[0]}?"


def test_what_a_function_left_goes_before_the_prompt_s() -> None:
    sample = one_sample(changed(RolloutCompleted, attributes={"label": "mine", "metadata": {"a": 1}}))
    assert (sample.label, sample.metadata) == ("mine", {"a": 1})


@pytest.mark.parametrize(("removed", "mask"), [((SAMPLE,), [0, 0, 0]), ((), [0, 1, 1])])
def test_a_mask_is_the_batch_s_or_the_rollout_s(removed: tuple[str, ...], mask: list[int]) -> None:
    events_ = changed(RolloutCompleted, loss_mask=pack([0, 1, 1], "int8"))
    sealed_events = [replace(e, removed=removed) if isinstance(e, BatchSealed) and e.step == 0 else e for e in events_]
    assert one_sample(sealed_events).loss_mask == mask
    assert one_sample(sealed_events, f"{GROUPS[0]}-s0").loss_mask == [1, 1, 1]


def test_rewards_have_their_detail_and_their_teacher() -> None:
    taught = pack_log_probs(np.array([-1.0, -2.0, -3.0], np.float32))
    sample = one_sample(changed(RewardAssigned, detail={"a": 1}, teacher_log_probs=taught))
    assert (sample.reward, sample.reward_detail, sample.teacher_log_probs) == (1.0, {"a": 1}, [-1.0, -2.0, -3.0])


def test_a_sample_without_a_reward_has_none() -> None:
    failed = made.reward_failed(f"{REJECTED}-s1", RewardFailureKind.TIMEOUT)
    events_ = [
        failed if isinstance(event, RewardAssigned) and event.sample == f"{REJECTED}-s1" else event
        for event in events()
    ]
    sample = one_sample(events_, f"{REJECTED}-s1")
    assert (sample.reward, sample.reward_detail, sample.advantage_input) == (None, None, None)


def evaluation(version: int, dataset: str) -> list[Event]:
    """The first group as an evaluation's, and its end."""
    events_: list[Event] = []
    for event in events():
        if isinstance(event, BatchSealed):
            break
        if isinstance(event, PromptSubmitted) and event.group == GROUPS[0]:
            event = replace(event, purpose=Purpose.EVAL, dataset="held", version=3)
        events_.append(event)
    end = made.evaluated(version, dataset=dataset, mean_length=3, oldest_version=3, newest_version=3)
    return [*events_, end]


@pytest.mark.parametrize(("version", "dataset", "count"), [(3, "held", 2), (4, "held", 0), (3, "other", 0)])
def test_an_evaluation_s_samples_are_those_of_its_version_and_set(version: int, dataset: str, count: int) -> None:
    samples = [sample for sample in exported(evaluation(version, dataset)) if sample.fate is Fate.EVALUATED]
    assert [(sample.sample, sample.step) for sample in samples] == [(f"{GROUPS[0]}-s{n}", 3) for n in range(count)]


def test_generations_of_a_function_and_late_answers_are_no_samples() -> None:
    events_ = list(events())
    request = next(event for event in events_ if isinstance(event, RolloutRequested))
    done = next(event for event in events_ if isinstance(event, RolloutCompleted))
    call, late = replace(request, purpose=Purpose.CALL, sample="call-a-s0", group="call-a"), replace(done)
    whole = exported(events_)
    assert (
        exported([*events_[:6], call, replace(done, sample="call-a-s0", group="call-a"), *events_[6:], late]) == whole
    )


def test_what_is_decided_is_forgotten() -> None:
    samples = Samples(RUN, unpack)
    for position, event in enumerate(events(), 1):
        samples.apply(event, position)
    assert (samples._run.groups, samples._run.samples, samples._trajectories.by_sample) == ({}, {}, {})


def test_a_group_that_nobody_knows_is_rejected_without_samples() -> None:
    assert exported([GroupRejected(group="none", cause=RejectionCause.FILTER, reason="x")]) == []


def followed(batches: dict[int, BatchSealed]) -> list[ExportedSample]:
    followed_samples = FollowedSamples("learner", Samples("learner", unpack), batches)
    return [sample for position, event in enumerate(events(), 1) for sample in followed_samples.apply(event, position)]


def test_a_learner_s_batches_take_the_place_of_the_other_s() -> None:
    first, second = (event for event in events() if isinstance(event, BatchSealed))
    mine = replace(first, groups=first.groups[:1], samples=first.samples[:1], rewards=(0.25,), raw_rewards=(7.0,))
    samples = followed({0: mine})
    trained = [sample for sample in samples if sample.fate is Fate.TRAINED]
    assert [(sample.sample, sample.reward, sample.advantage_input, sample.run) for sample in trained] == [
        (first.samples[0], 7.0, 0.25, "learner")
    ]
    rejected = {sample.group: sample.reason for sample in samples if sample.fate is Fate.REJECTED}
    assert set(rejected) == {REJECTED, first.groups[1]}
    assert rejected[REJECTED] == "zero_std_0.0"
    assert samples[-1].fate is Fate.TRAINED
    other = followed({1: second})
    assert [(sample.sample, sample.fate) for sample in other] == [(name, Fate.TRAINED) for name in second.samples]


def test_evaluations_of_the_other_run_are_left_out() -> None:
    samples = FollowedSamples("learner", Samples("learner", unpack), {})
    assert [sample for p, event in enumerate(evaluation(3, "held"), 1) for sample in samples.apply(event, p)] == []


def test_a_group_that_the_learner_takes_though_the_other_refused_it_is_trained() -> None:
    first = next(event for event in events() if isinstance(event, BatchSealed))
    name = f"{REJECTED}-s0"
    mine = replace(first, groups=(REJECTED,), samples=(name,), rewards=(0.25,), raw_rewards=(7.0,))
    samples = followed({0: mine})
    assert [(sample.sample, sample.reward) for sample in samples if sample.fate is Fate.TRAINED] == [(name, 7.0)]
    assert {sample.group for sample in samples if sample.fate is Fate.REJECTED} == set(first.groups)

"""The first difference of two runs: one change is planted in a copy of a log, and must be named."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.arrays import pack, pack_tokens
from schemas.batches import BatchSealed
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailureKind
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutProgressed, RolloutRequested, StopReason
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.analysis.compare.compare import compare_facts
from slime_events.analysis.compare.comparison import Difference, Kind
from tests import made
from tests.cli.small_run import BATCHES, GROUPS, REJECTED
from tests.compare.pairs import changed, compared, events, facts, without

SECOND = BATCHES[1][1]
SAMPLE = f"{SECOND}-s1"


def of_group(event: Any) -> bool:
    return bool(event.group == SECOND)


def of_sample(event: Any) -> bool:
    return bool(event.sample == SAMPLE)


def of_step(step: int) -> Any:
    return lambda event: event.step == step


def first(log: list[Event]) -> Difference:
    difference = compared(log).first
    assert difference is not None
    return difference


def inputs(difference: Difference) -> dict[str, tuple[Any, Any]]:
    return {value.name: (value.a, value.b) for value in difference.inputs}


def test_equal_runs_have_no_difference() -> None:
    comparison = compared(events())
    assert comparison.first is None
    assert comparison.settings == ()
    assert [step.step for step in comparison.steps] == [0, 1]
    assert all(step.differences == {} and step.a == step.b for step in comparison.steps)
    assert (comparison.a.run, comparison.b.run, comparison.b.first_step, comparison.b.last_step) == ("a", "b", 0, 1)


def test_the_order_of_arrival_and_the_workers_do_not_matter() -> None:
    log = changed(events(), RolloutCompleted, engine="another")
    rewards = [event for event in log if isinstance(event, RewardAssigned) and event.group in GROUPS[:2]]
    late = [event for event in log if event not in rewards]
    place = next(number for number, event in enumerate(late) if isinstance(event, GroupAccepted))
    verdicts = [event for event in late if isinstance(event, GroupAccepted) and event.group in GROUPS[:2]]
    rest = [event for event in late[place:] if event not in verdicts]
    seal = next(number for number, event in enumerate(rest) if isinstance(event, BatchSealed))
    log = [*late[:place], *rest[:seal], *reversed(rewards), *reversed(verdicts), *rest[seal:]]
    assert len(log) == len(events())
    assert compared(log).first is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"text": "another"}, "text"),
        ({"tokens": pack_tokens([1, 2, 4])}, "tokens"),
        ({"label": 43}, "label"),
        ({"metadata": {"level": 2}}, "metadata"),
        ({"messages": None}, "messages"),
    ],
)
def test_a_prompt(fields: dict[str, Any], field: str) -> None:
    difference = first(changed(events(), PromptSubmitted, of_group, **fields))
    assert (difference.kind, difference.field, difference.step) == (Kind.PROMPT, field, 1)
    assert (difference.group, difference.sample) == (SECOND, None)
    assert difference.a != difference.b
    assert inputs(difference)["line"] == (1, 1)


def test_a_prompt_that_one_run_did_not_draw() -> None:
    def is_other(event: Any) -> bool:
        return SECOND in (getattr(event, "group", ""), getattr(event, "sample", "").partition("-s")[0])

    kinds = (PromptSubmitted, RolloutRequested, RolloutCompleted, RolloutProgressed, RewardAssigned, GroupAccepted)
    difference = first(without(events(), *kinds, where=is_other))
    assert (difference.kind, difference.field, difference.group) == (Kind.PROMPT, "group", SECOND)
    assert (difference.a, difference.b, difference.b_position) == (SECOND, None, None)


def test_the_tokens_of_a_rollout() -> None:
    log = changed(events(), RolloutCompleted, of_sample, digest="other")
    log = changed(log, RolloutRequested, of_sample, seed=6)
    difference = first(log)
    assert (difference.kind, difference.field, difference.step) == (Kind.TOKENS, "digest", 1)
    assert (difference.group, difference.sample, difference.b) == (SECOND, SAMPLE, "other")
    assert inputs(difference)["seed"] == (5, 6)
    assert inputs(difference)["weights"] == ("v0[0:2] v1[2:3]",) * 2


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"loss_mask": pack([1, 1, 0], "int8")}, "loss_mask"), ({"stop": StopReason.ABORT}, "stop"),
     ({"prompt_text": "its own"}, "prompt_text"), ({"credit": pack([1, 1, 2], "float32")}, "credit")],
)  # fmt: skip
def test_the_rest_of_a_rollout(fields: dict[str, Any], field: str) -> None:
    difference = first(changed(events(), RolloutCompleted, of_sample, **fields))
    assert (difference.kind, difference.field, difference.sample) == (Kind.TOKENS, field, SAMPLE)
    assert difference.a != difference.b


def test_a_rollout_that_failed_in_one_run() -> None:
    log = events()
    place = next(n for n, event in enumerate(log) if isinstance(event, RolloutCompleted) and event.sample == SAMPLE)
    log[place] = made.failed(SAMPLE, FailureKind.TOO_LONG, message="too long")
    log = without(log, RewardAssigned, where=of_sample)
    place = next(n for n, event in enumerate(log) if isinstance(event, GroupAccepted) and event.group == SECOND)
    log[place] = made.rejected(SECOND, RejectionCause.ROLLOUT_FAILED)
    difference = first(log)
    assert (difference.kind, difference.field, difference.sample) == (Kind.TOKENS, "end", SAMPLE)
    assert (difference.a, difference.b) == ("completed", "failed: too long")


def test_a_reward() -> None:
    difference = first(changed(events(), RewardAssigned, of_sample, value=0.5, grader_digest="other"))
    assert (difference.kind, difference.field, difference.step) == (Kind.REWARD, "value", 1)
    assert (difference.sample, difference.a, difference.b) == (SAMPLE, 1.0, 0.5)
    assert inputs(difference)["grader digest"][1] == "other"
    assert inputs(difference)["answer"] == ("is 42", "is 42")
    assert inputs(difference)["label"] == ("42", "42")


def test_a_reward_that_failed_in_one_run() -> None:
    log = events()
    place = next(n for n, event in enumerate(log) if isinstance(event, RewardAssigned) and event.sample == SAMPLE)
    log[place] = made.reward_failed(SAMPLE, RewardFailureKind.TIMEOUT, message="late")
    difference = first(log)
    assert (difference.kind, difference.a, difference.b) == (Kind.REWARD, 1.0, "failed (timeout): late")


def test_the_log_probs_of_a_teacher() -> None:
    a, b = (changed(events(), RewardAssigned, of_sample, teacher_log_probs=pack(values, "float32"))
            for values in ([0, 0, 0], [0, 0, 1]))  # fmt: skip
    difference = compared(b, a).first
    assert difference is not None
    assert (difference.kind, difference.field) == (Kind.REWARD, "teacher_log_probs")


def test_a_decision_of_the_filter() -> None:
    log = events()
    place = next(n for n, event in enumerate(log) if isinstance(event, GroupRejected))
    log[place] = made.accepted(REJECTED, filter="other")
    difference = first(log)
    assert (difference.kind, difference.field, difference.step) == (Kind.DECISION, "verdict", 0)
    assert (difference.group, difference.a, difference.b) == (REJECTED, "rejected (filter)", "accepted")
    assert inputs(difference)["filter"] == ("nonzero_std", "other")
    assert inputs(difference)["reason"] == ("zero_std_0.0", None)


def test_the_order_of_a_batch() -> None:
    sealed = next(event for event in events() if isinstance(event, BatchSealed) and event.step == 1)
    samples = (*sealed.samples[:2], sealed.samples[3], sealed.samples[2])
    difference = first(changed(events(), BatchSealed, of_step(1), samples=samples))
    assert (difference.kind, difference.field, difference.step, difference.index) == (Kind.BATCH, "samples", 1, 2)
    assert (difference.a, difference.b) == (sealed.samples[2], sealed.samples[3])
    assert inputs(difference)[f"step of {SAMPLE}"] == (1, 1)


def test_a_batch_with_fewer_samples() -> None:
    sealed = next(event for event in events() if isinstance(event, BatchSealed) and event.step == 1)
    fewer = {"samples": sealed.samples[:3], "raw_rewards": sealed.raw_rewards[:3], "rewards": sealed.rewards[:3]}
    difference = first(changed(events(), BatchSealed, of_step(1), **fewer))
    assert (difference.field, difference.index, difference.a, difference.b) == ("samples", 3, SAMPLE, None)


@pytest.mark.parametrize("field", ["rewards", "raw_rewards"])
def test_the_rewards_of_a_batch(field: str) -> None:
    sealed = next(event for event in events() if isinstance(event, BatchSealed) and event.step == 1)
    values = (*getattr(sealed, field)[:3], 0.25)
    difference = first(changed(events(), BatchSealed, of_step(1), **{field: values, "post_process": "mine:f"}))
    assert (difference.kind, difference.field, difference.index) == (Kind.BATCH, field, 3)
    assert (difference.sample, difference.b) == (SAMPLE, 0.25)
    assert inputs(difference)["rewards by"] == (None, "mine:f")


@pytest.mark.parametrize("fields", [{"removed": (SAMPLE,)}, {"commands": ("m-1",)}, {"digest": "other"}])
def test_the_rest_of_a_batch(fields: dict[str, Any]) -> None:
    difference = first(changed(events(), BatchSealed, of_step(1), **fields))
    assert (difference.kind, [difference.field], difference.step) == (Kind.BATCH, list(fields), 1)


def test_a_gradient_norm() -> None:
    difference = first(changed(events(), StepCommitted, of_step(1), metrics={"grad_norm": 1.25, "loss": 0.25}))
    assert (difference.kind, difference.field, difference.step) == (Kind.GRADIENT_NORM, "grad_norm", 1)
    assert (difference.a, difference.b) == (1.5, 1.25)
    assert inputs(difference)["loss"] == (0.5, 0.25)


def test_a_gradient_norm_that_is_no_number_in_both_runs() -> None:
    a, b = (changed(events(), StepCommitted, metrics={"grad_norm": math.nan}) for _ in "ab")
    assert compared(b, a).first is None
    difference = first(b)
    assert (difference.kind, difference.step) == (Kind.GRADIENT_NORM, 0)


@pytest.mark.parametrize("field", ["weights_digest", "optimizer_digest"])
def test_a_digest(field: str) -> None:
    difference = first(changed(events(), StepCommitted, of_step(0), **{field: "other"}))
    assert (difference.kind, difference.field, difference.step) == (Kind.DIGEST, field, 0)
    assert difference.b == "other"
    assert inputs(difference)["grad_norm"] == (1.5, 1.5)


def test_digests_that_one_run_did_not_compute() -> None:
    assert compared(changed(events(), StepCommitted, optimizer_digest="")).first is None
    a = changed(events(), StepCommitted, critic_digest="c")
    assert compared(events(), a).first is None
    difference = compared(changed(events(), StepCommitted, critic_digest="other"), a).first
    assert difference is not None
    assert difference.field == "critic_digest"


def test_the_weights_at_the_start() -> None:
    log = changed(events(), WeightsPublished, lambda event: event.version == 0, digest="other")
    difference = first(changed(log, RewardAssigned, value=0.5))
    assert (difference.kind, difference.field, difference.step) == (Kind.DIGEST, "weights_digest", None)
    assert (difference.a, difference.b) == ("d0", "other")


def test_causes_come_before_effects_of_the_same_step() -> None:
    log = events()
    expected = []
    for kind, fields, name in (
        (StepCommitted, {"weights_digest": "other"}, Kind.DIGEST),
        (StepCommitted, {"metrics": {"grad_norm": 9.0}}, Kind.GRADIENT_NORM),
        (BatchSealed, {"digest": "other"}, Kind.BATCH),
        (RewardAssigned, {"value": 9.0}, Kind.REWARD),
        (RolloutCompleted, {"digest": "other"}, Kind.TOKENS),
        (PromptSubmitted, {"text": "other"}, Kind.PROMPT),
    ):
        log = changed(log, kind, **fields)
        expected.append(name)
        assert first(log).kind is name
        assert first(log).step == 0
    counts = compared(log).steps[0].differences
    assert set(counts) == set(expected)
    assert counts[Kind.PROMPT] == 3, "two groups of the batch, and the rejected one"


def test_an_earlier_step_comes_before_a_later_one() -> None:
    log = changed(events(), PromptSubmitted, of_group, text="other")
    log = changed(log, StepCommitted, of_step(0), weights_digest="other")
    assert (first(log).kind, first(log).step) == (Kind.DIGEST, 0)


def test_a_run_that_has_fewer_steps_is_compared_as_far_as_it_goes() -> None:
    log = events()
    place = next(n for n, event in enumerate(log) if isinstance(event, BatchSealed) and event.step == 1)
    comparison = compared(log[:place])
    assert comparison.first is None
    assert ([step.step for step in comparison.steps], comparison.b.last_step) == ([0], 0)
    shorter = changed(log[:place], RewardAssigned, of_sample, value=0.5)
    difference = compared(shorter).first
    assert difference is not None
    assert (difference.kind, difference.step) == (Kind.REWARD, 1), "the step under way is compared too"


def test_work_that_has_not_ended_is_no_difference() -> None:
    log = events()
    place = next(n for n, event in enumerate(log) if isinstance(event, RolloutRequested) and event.sample == SAMPLE)
    assert compared(log[:place]).first is None
    assert compared(log[:1]).first is None


def test_a_group_that_was_trained_one_step_later() -> None:
    log = events()
    sealed = [event for event in log if isinstance(event, BatchSealed)]
    swapped = [replace(s, groups=t.groups, samples=t.samples) for s, t in zip(sealed, reversed(sealed), strict=True)]
    log = [swapped[event.step] if isinstance(event, BatchSealed) else event for event in log]
    difference = first(log)
    assert (difference.kind, difference.field, difference.step, difference.index) == (Kind.BATCH, "samples", 0, 0)
    assert inputs(difference)["step of train-0-000000-s0"] == (0, 1)


def test_settings_and_versions_that_differ_are_listed() -> None:
    started = made.started(code_version="2", environment={"torch": "3"})
    a = facts(events(), "a", {"run": {"run": "a"}, "rollout": {"seed": 1, "paths": ["x"]}})
    tables = {"run": {"run": "b"}, "rollout": {"seed": 2, "paths": ["x", "y"]}, "engine": {"device": "cpu"}}
    comparison = compare_facts(a, facts([started, *events()[1:]], "b", tables))
    assert comparison.first is None
    assert [(value.name, value.a, value.b) for value in comparison.settings] == [
        ("rollout.seed", 1, 2),
        ("rollout.paths", '["x"]', '["x","y"]'),
        ("engine.device", None, "cpu"),
        ("version of slime-events", "0.1.0", "2"),
        ("version of torch", "2", "3"),
    ]


def test_distributions_of_a_step() -> None:
    log = changed(events(), BatchSealed, of_step(0), raw_rewards=(0.0, 0.5, 1.0, 0.5))
    log = changed(log, RolloutCompleted, lambda event: event.group == GROUPS[0], length=5)
    step = compared(log).steps[0]
    rewards, lengths = step.b.rewards, step.b.lengths
    assert rewards is not None
    assert lengths is not None
    assert (rewards.mean, rewards.p50, rewards.std) == (0.5, 0.5, pytest.approx(0.3535534))
    assert (lengths.mean, lengths.p10, lengths.p90) == (4.0, 3.0, 5.0)
    assert step.a.rewards is not None
    assert step.a.rewards.std == 0.5
    assert (step.a.samples, step.b.samples) == (4, 4)


def test_prompts_that_were_drawn_in_advance_are_no_difference() -> None:
    extra = [
        made.submitted("train-0-000009", text="more"),
        made.requested("train-0-000009-s0"),
        made.completed("train-0-000009-s0", [7]),
        made.assigned("train-0-000009-s0"),
        made.accepted("train-0-000009", ("train-0-000009-s0",), (1.0,)),
    ]
    place = next(n for n, event in enumerate(events()) if isinstance(event, BatchSealed))
    assert compared([*events()[:place], *extra, *events()[place:]]).first is None


def test_a_prompt_that_one_run_draws_because_of_a_decision() -> None:
    """The decision is named, although the batch has a prompt that the other run has not drawn."""
    log = events()
    place = next(n for n, event in enumerate(log) if isinstance(event, GroupAccepted) and event.group == GROUPS[0])
    log[place] = made.rejected(GROUPS[0], filter="other")
    place = next(n for n, event in enumerate(log) if isinstance(event, BatchSealed))
    log[place] = replace(log[place], groups=(GROUPS[1], "train-0-000009"))
    log.insert(place, made.submitted("train-0-000009", text="more"))
    difference = first(log)
    assert (difference.kind, difference.step, difference.group) == (Kind.DECISION, 0, GROUPS[0])
    assert compared(log).steps[0].differences[Kind.PROMPT] == 1

"""Test what a replay reports, and what it does not take for a difference."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from schemas.batches import BatchSealed
from schemas.errors import InvalidValue, LogDamaged
from schemas.evals import EvalCompleted
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutRequested
from schemas.runs import Branched, FinishReason, RunFailed, RunFinished, RunStarted
from schemas.weights import WeightsPublished
from slime_events.analysis.replay.equality import is_decision
from slime_events.analysis.replay.report import Kind
from slime_events.core.config.toml import settings_from
from slime_events.core.state.group import GroupState
from slime_events.loop.conductor.decide import is_broken
from slime_events.loop.conductor.plan import make_plan as plan_of
from slime_events.plugins.filters.decide import FilterDecision, group_std, run_filter
from slime_events.plugins.sample_view import group_samples
from tests import made
from tests.conductor.driver import Driver, dropping, make_plan
from tests.replay.golden import changed, golden
from tests.replay.replayed import policy_for, replayed

STRICT = "slime_events.plugins.filters.dynamic_sampling:check_reward_nonzero_std"


def as_it_is(raw: Any, sizes: Any) -> list[float]:
    """The driver's normalisation."""
    return list(raw)


@pytest.mark.parametrize("seed", range(12))
def test_whenever_the_conductor_looked_it_is_the_same_again(seed: int) -> None:
    """The driver looks at some positions only, by chance, over modes, faults and orders."""
    chance = random.Random(seed)
    plan = make_plan(
        groups=chance.randint(1, 3),
        max_staleness=chance.choice([0, 1, 2]),
        in_prompt_order=chance.random() < 0.5,
        verdicts_at_once=chance.random() < 0.5,
        partial_rollout=chance.random() < 0.5,
        draw=chance.choice([None, 2, 5]),
        publish_every=chance.randint(1, 2),
    )
    judge = dropping(0.3)
    driver = Driver(plan, judge)
    driver.play(chance, engine_fails=0.1, invalid=0.02, ungraded=0.02, older=0.1)
    # The driver continues after the last commit, which a conductor does not.
    end = max(r.position for r in driver.log if r.envelope.type in ("step.committed", "weights.published"))
    records = driver.log[:end]
    report = replayed(records, policy_for(plan, judge, as_it_is))
    assert report.is_equal, report.differences[0]
    assert report.compared == sum(is_decision(record.envelope.event) for record in records)


@pytest.mark.parametrize(
    ("kind", "change", "fields"),
    [
        (RolloutRequested, lambda event: {"seed": event.seed + 1}, ("seed",)),
        (RolloutRequested, lambda event: {"min_version": 3}, ("min_version",)),
        (BatchSealed, lambda event: {"rewards": (*event.rewards[:-1], 0.5)}, ("rewards",)),
        (BatchSealed, lambda event: {"digest": "0" * 64}, ("digest",)),
        (BatchSealed, lambda event: {"suspends": not event.suspends}, ("suspends",)),
        (GroupAccepted, lambda event: {"figures": {"mean": 0.5}}, ("figures",)),
        (GroupRejected, lambda event: {"reason": "for no reason"}, ("reason",)),
        (EvalCompleted, lambda event: {"mean": 0.123}, ("mean",)),
    ],
)
def test_one_changed_decision_is_the_only_difference(kind: Any, change: Any, fields: tuple[str, ...]) -> None:
    records, position = changed(golden("synchronous"), kind, change)
    (difference,) = replayed(records).differences
    assert (difference.position, difference.kind, difference.fields) == (position, Kind.OTHER, fields)
    assert f"different {fields[0]}" in str(difference)


def test_a_changed_input_is_found_at_the_verdict_that_it_was_for() -> None:
    """One reward of an accepted group is another: the verdict does not follow from the log any more."""
    records = golden("synchronous")
    accepted = next(r for r in records if isinstance(r.envelope.event, GroupAccepted))
    samples = accepted.envelope.event.samples
    graded = [r.envelope.event for r in records if isinstance(r.envelope.event, RewardAssigned)]
    nth = next(i for i, event in enumerate(graded) if event.sample == samples[0])
    records, _ = changed(records, RewardAssigned, lambda event: {"value": 1.0 - event.value}, nth=nth)
    first = replayed(records, every=False).differences[0]
    assert first.position == accepted.position
    (group,) = first.inputs["groups"]
    assert [sample["sample"] for sample in group["samples"]] == list(samples)


def test_another_filter_flips_exactly_the_groups_that_it_drops() -> None:
    records = golden("resting")  # which has no filter
    report = replayed(records, changes={"rollout": {"dynamic_sampling_filter_path": STRICT}})
    accepted = [r.envelope.event for r in records if isinstance(r.envelope.event, GroupAccepted)]
    dropped = [event.group for event in accepted if (group_std(event.rewards) or 0) <= 1e-6]
    assert 0 < len(dropped) < len(accepted)
    assert [verdict.recorded.group for verdict in report.verdicts] == dropped  # type: ignore[attr-defined]
    assert {type(verdict.decided) for verdict in report.verdicts} == {GroupRejected}


def test_a_larger_draw_asks_for_more() -> None:
    first = replayed(
        golden("synchronous"), changes={"rollout": {"over_sampling_batch_size": 4}}, every=False
    ).differences[0]
    assert isinstance(first.decided, PromptSubmitted)
    assert first.kind is Kind.INSTEAD


def test_another_normalisation_changes_batches_alone() -> None:
    report = replayed(golden("synchronous"), changes={"algorithm": {"grpo_std_normalization": False}})
    assert {(type(difference.recorded), difference.fields) for difference in report.differences} == {
        (BatchSealed, ("rewards", "digest"))
    }
    assert {"sample", "recorded", "now"} <= set(report.differences[0].inputs["first_reward"])


def test_settings_that_a_resumption_changes_are_decided_by_from_there_on() -> None:
    values = {
        "rollout": {
            "num_rollout": 4, "rollout_batch_size": 3, "n_samples_per_prompt": 2, "rollout_max_response_len": 8,
            "rollout_temperature": 0.5,
        },
        "algorithm": {"rewards_normalization": False},
    }  # fmt: skip
    settings = settings_from(values)
    plan, more = make_plan(steps=2), plan_of(settings.rollout, settings.evaluation, settings.trainer)
    driver = Driver(plan)
    driver.play(random.Random(1))
    assert isinstance(driver.log[-1].envelope.event, WeightsPublished), "nothing follows the last commit"
    before = len(driver.log)
    driver.plan = more
    driver.say(made.resumed(settings=values))
    driver.settle()
    driver.play(random.Random(2))
    driver.say(made.resumed(2, settings={"rollout": {"num_rollout": 5}}))
    driver.plan = msgspec.structs.replace(more, steps=5)
    driver.settle()
    driver.play(random.Random(3))
    assert len(driver.batches) == 5
    requests = [r.envelope.event for r in driver.log[before:] if isinstance(r.envelope.event, RolloutRequested)]
    assert {request.sampling.temperature for request in requests} == {0.5}
    report = replayed(driver.log, policy_for(plan, normalised=as_it_is))
    assert report.is_equal, report.differences[0]
    assert report.compared == sum(is_decision(record.envelope.event) for record in driver.log)
    replay_report = replayed(
        driver.log, policy_for(plan, normalised=as_it_is), {"rollout": {"rollout_temperature": 1.0}}
    )
    assert {(type(difference.recorded), difference.fields) for difference in replay_report.differences} == {
        (RolloutRequested, ("sampling",))
    }
    assert replay_report.differences[0].position > before, "what is tried instead goes over what was resumed with"


def test_a_run_does_not_end_before_its_last_step() -> None:
    records = golden("synchronous")
    end = max(i for i, r in enumerate(records) if r.envelope.type == "step.committed") - 1
    (finished,) = (r for r in records if isinstance(r.envelope.event, RunFinished))
    (difference,) = replayed([*records[:end], finished]).differences
    assert (difference.position, difference.kind, difference.recorded) == (
        finished.position,
        Kind.NOT_NOW,
        finished.envelope.event,
    )


def test_an_end_that_follows_from_no_state_is_no_difference() -> None:
    """Accept an end by request, or because another role could not continue."""
    records = golden("synchronous")
    end = next(i for i, r in enumerate(records) if r.envelope.type == "step.committed")
    (finished,) = (r for r in records if isinstance(r.envelope.event, RunFinished))
    interrupted = msgspec.structs.replace(finished.envelope.event, reason=FinishReason.INTERRUPTED)
    for event in (interrupted, RunFailed(role="conductor", reason="no progress")):
        envelope = msgspec.structs.replace(finished.envelope, event=event)
        assert replayed([*records[:end], msgspec.structs.replace(finished, envelope=envelope)]).is_equal


def test_why_a_run_could_not_go_on_follows_from_its_groups() -> None:
    def broken(args: object, samples: object) -> bool:
        raise KeyError("colour")

    def judge(group: GroupState) -> FilterDecision:
        return run_filter(broken, None, group_samples(group))

    driver = Driver(make_plan(), judge)
    driver.play(random.Random(1))
    reason = is_broken(driver.state, driver.plan)
    assert reason is not None
    reason = reason.replace("drive", "sim")  # which is the name that a replay of these tests has
    by = policy_for(driver.plan, judge, as_it_is)
    for role, failure_reason, equal in (("conductor", reason, True), ("conductor", "x", False), ("trainer", "x", True)):
        driver.say(RunFailed(role=role, reason=failure_reason))
        assert replayed(driver.log, by).is_equal is equal, (role, failure_reason)
        driver.log.pop()


def test_a_log_that_lacks_an_event_is_damaged() -> None:
    records = [r for r in golden("synchronous") if not isinstance(r.envelope.event, PromptSubmitted)]
    with pytest.raises(LogDamaged, match="does not fit"):
        replayed(records)


def test_a_filter_of_another_name_is_no_other_decision() -> None:
    records, _ = changed(golden("synchronous"), GroupAccepted, lambda event: {"filter": "m:f", "filter_digest": "1"})
    assert replayed(records).is_equal
    assert msgspec.json.encode(replayed(records).json_values())


def test_a_learner_has_no_conductor_to_replay() -> None:
    parent = Branched(
        run="parent", where="/runs/parent", position=9, version=0, weights_digest="", optimizer_digest="", follows=True
    )
    records, _ = changed(golden("synchronous"), RunStarted, lambda event: {"branched": parent})
    with pytest.raises(InvalidValue, match=r"trains on the rollouts of parent.*Replay that run: /runs/parent"):
        replayed(records)

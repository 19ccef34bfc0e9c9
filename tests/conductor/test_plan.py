"""The plan that settings describe, and the bounds that follow from it."""

from __future__ import annotations

import pytest

from schemas.rollouts import Sampling
from slime_events.core.config.evaluation import EvalSet, EvalSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.save_steps import SaveSteps
from slime_events.core.config.trainer import TrainerSettings
from slime_events.loop.conductor.plan import EvalPlan, make_plan
from tests.conductor.driver import make_plan as plan_of


def test_each_setting_is_in_its_place() -> None:
    rollout = RolloutSettings(
        num_rollout=9,
        rollout_batch_size=5,
        n_samples_per_prompt=3,
        rollout_seed=11,
        over_sampling_batch_size=7,
        max_staleness=2,
        max_attempts=6,
        partial_rollout=True,
        mask_offpolicy_in_partial_rollout=True,
        rollout_max_response_len=13,
        rollout_temperature=0.7,
        rollout_top_p=0.8,
        rollout_top_k=17,
        rollout_stop=["x"],
        rollout_stop_token_ids=[19],
        rollout_skip_special_tokens=True,
    )
    evaluation = EvalSettings(
        eval_interval=23,
        eval_prompt_data=["a", "a.jsonl", "b", "b.jsonl"],
        n_samples_per_eval_prompt=4,
        eval_temperature=0.0,
        eval_max_response_len=29,
        skip_eval_before_train=True,
    )
    plan = make_plan(rollout, evaluation, TrainerSettings(update_weights_interval=31, save_interval=37))
    assert (plan.steps, plan.groups, plan.samples, plan.seed, plan.draw) == (9, 5, 3, 11, 7)
    assert (plan.max_staleness, plan.max_attempts, plan.partial_rollout, plan.mask_offpolicy) == (2, 6, True, True)
    assert (plan.publish_every, plan.saves) == (31, SaveSteps(37))
    assert (plan.eval_every, plan.eval_first, list(plan.evals)) == (23, False, ["a", "b"])
    assert plan.sampling == Sampling(
        max_new_tokens=13, temperature=0.7, top_p=0.8, top_k=17, stop=("x",), stop_token_ids=(19,),
        skip_special_tokens=True,
    )  # fmt: skip
    sampling = Sampling(
        max_new_tokens=29, temperature=0.0, top_p=0.8, top_k=17, stop=("x",), stop_token_ids=(19,),
        skip_special_tokens=True,
    )  # fmt: skip
    assert plan.evals == dict.fromkeys(["a", "b"], EvalPlan(sampling=sampling, samples=4))


def test_a_set_goes_before_the_flags_and_they_before_the_rollout_s() -> None:
    rollout = RolloutSettings(num_rollout=1, rollout_max_response_len=13, rollout_top_k=17, rollout_stop=["x"])
    own = EvalSet(
        path="a",
        n_samples_per_eval_prompt=5,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        max_response_len=99,
        min_new_tokens=2,
        stop=["y"],
        stop_token_ids=[1],
    )
    evaluation = EvalSettings(
        eval_sets={"own": own, "flags": EvalSet(path="b", stop=[])},
        eval_prompt_data=["no", "more"],
        n_samples_per_eval_prompt=4,
        eval_temperature=0.0,
        eval_top_p=0.8,
        eval_max_response_len=29,
        eval_min_new_tokens=7,
        eval_max_context_len=50,
    )
    plan = make_plan(rollout, evaluation, TrainerSettings())
    assert plan.evals["own"] == EvalPlan(
        sampling=Sampling(
            max_new_tokens=99, temperature=0.5, top_p=0.9, top_k=3, min_new_tokens=2, stop=("y",), stop_token_ids=(1,)
        ),
        samples=5,
        max_context=50,
    )
    sampling = Sampling(max_new_tokens=29, temperature=0.0, top_p=0.8, top_k=17, min_new_tokens=7)
    assert plan.evals["flags"] == EvalPlan(sampling=sampling, samples=4, max_context=50)
    assert plan.eval_of("gone") == EvalPlan(sampling=plan.sampling)


@pytest.mark.parametrize(("prompt", "room"), [(10, 29), (21, 29), (22, 28), (49, 1), (60, 1)])
def test_an_answer_ends_with_the_context(prompt: int, room: int) -> None:
    plan = EvalPlan(sampling=Sampling(max_new_tokens=29, min_new_tokens=28, top_k=2), max_context=50)
    assert plan.sampling_for(prompt) == Sampling(max_new_tokens=room, min_new_tokens=min(28, room), top_k=2)


@pytest.mark.parametrize(
    ("order", "staleness", "in_order"),
    [("auto", 0, True), ("auto", 1, False), ("prompt", 1, True), ("completion", 0, False)],
)
def test_the_order_of_verdicts(order: str, staleness: int, in_order: bool) -> None:
    rollout = RolloutSettings(num_rollout=1, accept_order=order, max_staleness=staleness)  # type: ignore[arg-type]
    assert make_plan(rollout, EvalSettings(), TrainerSettings()).in_prompt_order is in_order


@pytest.mark.parametrize("path", [None, "m:f"])
def test_verdicts_wait_for_their_batch_where_no_filter_can_make_room(path: str | None) -> None:
    rollout = RolloutSettings(num_rollout=1, dynamic_sampling_filter_path=path)
    assert make_plan(rollout, EvalSettings(), TrainerSettings()).verdicts_at_once is (path is not None)


def test_a_plan_needs_its_number_of_steps() -> None:
    with pytest.raises(ValueError, match="num_rollout"):
        make_plan(RolloutSettings(), EvalSettings(), TrainerSettings())


@pytest.mark.parametrize(
    ("draw", "staleness", "publish_every", "bound"),
    [(None, 0, 1, 0), (None, 2, 1, 2), (None, 0, 3, 2), (None, 1, 3, 3), (1, 0, 1, 0), (2, 0, 1, 1), (4, 0, 1, 1),
     (5, 0, 1, 2), (7, 1, 2, 4), (8, 0, 1, 3)],
)  # fmt: skip
def test_versions_that_a_sample_may_be_behind(draw: int | None, staleness: int, publish_every: int, bound: int) -> None:
    """Allow for three groups a step: a draw of four leaves one over for the next step, as one of two may."""
    plan = plan_of(groups=3, draw=draw, max_staleness=staleness, publish_every=publish_every)
    assert (plan.staleness_bound, plan.ahead) == (bound, bound + 1)
    assert plan.room == 3 * (1 + staleness)


@pytest.mark.parametrize(("groups", "limit"), [(1, 16), (8, 16), (9, 18), (64, 128)])
def test_broken_groups_that_end_a_run(groups: int, limit: int) -> None:
    assert plan_of(groups=groups).broken_limit == limit

"""Figures of a run's metrics, each by itself: what is counted, from when on, and its place on its axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from schemas.event import Event, Purpose
from schemas.rollouts import RolloutReturned, StopReason
from schemas.turns import TurnRole
from slime_events.analysis.metrics.rollouts import (
    generation_metrics,
    multi_turn_metrics,
    pass_rates,
    prefixed,
    sample_metrics,
    statistics_of,
)
from slime_events.analysis.metrics.sample import SampleFigures
from slime_events.analysis.metrics.steps import train_metrics, trainer_metrics
from slime_events.core.config.settings import TrainSettings
from tests import made
from tests.metrics.rows import EVERYTHING, batch, rollout, rows_of

ALL = TrainSettings(metrics=EVERYTHING)
COMMITTED = made.committed(
    batch_digest="", weights_digest="", optimizer_digest="", samples=2, tokens=60,
    seconds={"batch": 0.02, "train": 0.03},
)  # fmt: skip
HELD = made.evaluated(3)


def figures(**changes: Any) -> SampleFigures:
    usual: dict[str, Any] = {
        "group": "a", "length": 4, "total": 6, "mask": 4, "is_truncated": False, "repeats": False, "oldest": 0,
        "rounds": 1, "tool_seconds": 0.0, "log_prob": -1.0,
    }  # fmt: skip
    return SampleFigures(**usual | changes)


def values(events: list[Event], settings: TrainSettings | None = None, place: int = -1) -> dict[str, float]:
    return rows_of(events, settings)[place].values


def test_slime_s_four_of_some_numbers() -> None:
    assert statistics_of("x", [4, 1, 2]) == {"x/mean": 7 / 3, "x/median": 2.0, "x/max": 4.0, "x/min": 1.0}
    assert prefixed("a/", {"b": 1.0}) == {"a/b": 1.0}
    assert pass_rates(["a", "b", "a"], [1.0, 1.0, 0.0]) == {"pass@1": 0.75, "pass@2": 1.0}


def test_only_trained_tokens_are_effective() -> None:
    some = [figures(mask=np.array([1, 0, 0, 1], np.int8), rounds=3), figures(length=6, mask=6)]
    assert [sample.trained for sample in some] == [2, 6]
    values_ = multi_turn_metrics(some, 6)
    assert {name.rpartition("/")[2]: value for name, value in values_.items() if name.startswith("wo_obs")} == {
        "response_length_mean": 4.0, "response_length_max": 6, "response_length_min": 2
    }  # fmt: skip
    assert values_["raw_response_length/response_length_mean"] == 5.0
    assert (values_["raw_response_length/response_length_min"], values_["multi_turn_metric/round_number_max"]) == (4, 3)
    clip = "raw_response_length/response_length_clip_ratio"
    assert [multi_turn_metrics(some, longest)[clip] for longest in (4, 5, 6, 7)] == [1.0, 0.5, 0.5, 0.0]


def test_speed_is_of_the_time_and_the_devices() -> None:
    some = [figures(length=8, mask=2), figures(length=4, mask=4)]
    assert generation_metrics(some, 2.0, 3) == {
        "rollout_time": 2.0, "longest_sample_tokens_per_sec": 4.0, "tokens_per_gpu_per_sec": 2.0,
        "longest_effective_sample_tokens_per_sec": 2.0, "effective_tokens_per_gpu_per_sec": 1.0,
    }  # fmt: skip
    assert generation_metrics(some, 0.0, 3) == {"rollout_time": 0.0}
    assert generation_metrics([], 2.0, 3) == {"rollout_time": 2.0}


def test_time_in_tools_is_no_generation() -> None:
    some = [figures(length=8, mask=2, tool_seconds=0.5), figures(length=8, mask=4, tool_seconds=1.5)]
    values_ = generation_metrics(some, 2.0, 1)
    assert values_["non_generation_time/mean"] == values_["longest_sample_non_generation_time"] == 1.0
    assert values_["longest_effective_sample_non_generation_time"] == 1.5
    without = "tokens_per_sec_without_non_generation"
    assert (values_[f"longest_sample_{without}"], values_[f"longest_effective_sample_{without}"]) == (8.0, 8.0)
    whole = generation_metrics(some, 1.5, 1)
    assert f"longest_effective_sample_{without}" not in whole, "there was no time left"
    assert f"longest_sample_{without}" in whole


@pytest.mark.parametrize(
    ("rewards", "counted"),
    [
        ({"a": [1.0, 1.0], "b": [0.0, 1.0]}, {"zero_std/count_1.0": 1.0}),
        ({"a": [0.04, 0.04], "b": [0.0, 0.0]}, {"zero_std/count_0.0": 2.0}),
        ({"a": [0.0, 1.0]}, {}),
    ],
)
def test_groups_of_equal_rewards_are_counted_by_them(
    rewards: dict[str, list[float]], counted: dict[str, float]
) -> None:
    some = [figures(group=group) for group, of in rewards.items() for _ in of]
    values_ = sample_metrics(some, [reward for of in rewards.values() for reward in of], TrainSettings())
    assert {name: value for name, value in values_.items() if name.startswith("zero_std")} == counted


def test_shares_are_of_all_samples() -> None:
    some = [figures(is_truncated=True, detail={"found": "x"}), figures(repeats=True), figures(detail={"found": "x"})]
    values_ = sample_metrics([*some, figures()], [1.0, 0.0, 0.0, 0.0], ALL)
    assert (values_["truncated_ratio"], values_["repetition_frac"]) == (0.25, 0.25)
    assert (values_["error_cat/x"], values_["error_cat/None"]) == (0.5, 0.5)


def test_correct_answers_lie_in_quarters_of_the_longest() -> None:
    lengths = [0, 1, 2, 3, 4, 5]
    events = [event for n in lengths for event in rollout(f"a-s{n}", [-float(n)] * n, 1.0)]
    settings = made.settings(metrics=EVERYTHING, rollout={"rollout_max_response_len": 4})
    figures_ = values([*events, batch(0, {f"a-s{n}": 1.0 for n in lengths})], settings)
    quarters = [figures_[f"rollout/correct_length/p{part}"] for part in (25, 50, 75, 100)]
    assert quarters == [2 / 6, 1 / 6, 1 / 6, 1 / 6]
    assert figures_["rollout/correct_response_lengths"] == 2.5
    assert figures_["rollout/correct_entropy"] == 3.0


def test_masked_samples_have_no_log_prob_and_no_part_in_its_mean() -> None:
    events = [*rollout("a-s0", [-1.0, -3.0], 1.0, mask=[0, 0]), *rollout("a-s1", [-1.0, -4.0], 1.0, mask=[0, 1])]
    figures_ = values([*events, batch(0, {"a-s0": 1.0, "a-s1": 1.0})], ALL)
    assert (figures_["rollout/rollout_log_probs"], figures_["rollout/correct_entropy"]) == (-4.0, 4.0)
    alone = values([*events[:3], batch(0, {"a-s0": 1.0})], ALL)
    assert not {"rollout/rollout_log_probs", "rollout/correct_entropy"} & set(alone)


def test_advantages_are_told_where_they_follow_from_rewards() -> None:
    events = [*rollout("a-s0", [-1.0], 1.0), *rollout("a-s1", [-1.0], 0.0), batch(0, {"a-s0": 1.0, "a-s1": 0.5})]
    assert values(events)["rollout/advantages"] == pytest.approx(0.75)
    for elsewhere in ({"advantage_estimator": "ppo"}, {"use_opd": True}, {"custom_advantage_function_path": "m.f"}):
        settings = made.settings(algorithm=elsewhere)
        assert "rollout/advantages" not in values(events, settings)


def test_a_batch_with_a_sample_that_is_not_in_the_log_has_rewards_alone() -> None:
    figures_ = values([*rollout("a-s0", [-1.0], 1.0), batch(0, {"a-s0": 1.0, "a-s1": 0.0})])
    assert set(figures_) == {"rollout/rewards", "rollout/raw_reward", "rollout/step"}


def test_a_user_s_metrics_stand_under_rollout_but_for_slime_s_parts() -> None:
    own_metrics = {"mine": 1.0, "perf/mine": 2.0, "train/mine": 3.0, "odd/mine": 4.0}
    returned = RolloutReturned(step=4, function="f", digest="", metrics=own_metrics)
    first, second = rows_of([returned, batch(3, {"a-s0": 1.0}), batch(4, {"b-s0": 1.0})])
    assert not [name for name in first.values if "mine" in name]
    more = {"rollout/mine": 1.0, "perf/mine": 2.0, "train/mine": 3.0, "rollout/odd/mine": 4.0}
    assert {name: second.values.get(name) for name in more} == more
    evaluated = replace(returned, evaluation=True)
    (row,) = rows_of([evaluated, replace(evaluated, metrics={})])
    assert row.values == {"eval/mine": 1.0, "perf/mine": 2.0, "train/mine": 3.0, "eval/odd/mine": 4.0, "eval/step": 4}


@pytest.mark.parametrize(("version", "step"), [(0, 0), (1, 0), (5, 4)])
def test_saving_is_a_step_s(version: int, step: int) -> None:
    saved = made.saved(version, seconds=2.5)
    assert values([saved]) == {"perf/save_model_time": 2.5, "rollout/step": step}


def test_generation_is_timed_from_the_first_request_after_the_last_batch() -> None:
    def sampled(name: str) -> list[Event]:
        return rollout(name, [-1.0], 1.0)

    events = [*sampled("a-s0"), batch(0, {"a-s0": 1.0}), HELD, *sampled("b-s0"), batch(1, {"b-s0": 1.0})]
    first, _, second = rows_of(events)
    assert first.values["perf/rollout_time"] == pytest.approx(0.3)
    assert second.values["perf/rollout_time"] == pytest.approx(0.3)
    resumed = made.resumed()
    (late,) = rows_of([*sampled("a-s0"), resumed, HELD, batch(0, {"a-s0": 1.0})])[1:]
    assert late.values["perf/rollout_time"] == pytest.approx(0.2), "the time between two lives is nobody's"


def test_an_evaluation_s_requests_begin_no_step() -> None:
    request, done, graded = rollout("eval-held-v3-000000-s0", [-1.0], 1.0)
    evaluation = [replace(request, purpose=Purpose.EVAL), done, graded]
    events = [*evaluation, *rollout("a-s0", [-1.0], 1.0), batch(0, {"a-s0": 1.0})]
    assert values(events)["perf/rollout_time"] == pytest.approx(0.3)


def test_calls_of_a_function_are_no_samples() -> None:
    request, done, graded = rollout("a-s0", [-1.0], 1.0)
    call = replace(request, purpose=Purpose.CALL)
    assert set(values([call, done, graded, batch(0, {"a-s0": 1.0})])) == {
        "rollout/rewards", "rollout/raw_reward", "rollout/step"
    }  # fmt: skip


def test_engines_of_several_devices_count_as_those() -> None:
    events = [*rollout("a-s0", [-1.0] * 4, 1.0), batch(0, {"a-s0": 1.0})]
    settings = made.settings(engine={"rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 2})
    assert values(events, settings)["perf/tokens_per_gpu_per_sec"] == pytest.approx(4 / 0.3 / 8)


def test_a_sample_that_was_asked_for_again_is_one() -> None:
    request, done, graded = rollout("eval-held-v3-000000-s0", [-1.0], 1.0)
    other = replace(request, sample="eval-held-v3-000000-s1", index=1)
    again = [request, other, replace(request, attempt=1), done, graded, HELD]
    figures_ = values(again, ALL)
    assert (figures_["eval/held-pass@1"], figures_["eval/held-pass@2"]) == (0.5, 1.0)
    assert figures_["eval/held-truncated_ratio"] == 0.0


def test_chunks_of_a_rollout_count_with_its_end() -> None:
    request, done, graded = rollout("a-s0", [-1.0, -3.0], 1.0)
    assert hasattr(done, "tokens")
    chunk = made.progressed("a-s0", done.tokens, spans=done.spans, log_probs=done.log_probs)
    rest = rollout("a-s0", [-5.0], 1.0, start=2, length=3)[1]
    figures_ = values([request, chunk, rest, graded, batch(0, {"a-s0": 1.0})])
    assert (figures_["rollout/response_lengths"], figures_["rollout/rollout_log_probs"]) == (3.0, -3.0)


def test_further_samples_have_the_turns_of_their_rollout() -> None:
    request, done, graded = rollout("a-s0", [-1.0], 1.0)
    further = rollout("a-s0-1", [-1.0], 1.0, rollout="a-s0")[1:]
    turns = [
        made.turn("a-s0", seconds=5.0),
        made.turn("a-s0", index=1, role=TurnRole.TOOL, seconds=0.2),
        made.turn("a-s0", index=2),
    ]
    again = rollout("a-s0", [-1.0], 1.0)
    events = [
        request,
        *turns,
        *further,
        done,
        graded,
        batch(0, {"a-s0-1": 1.0, "a-s0": 1.0}),
        *again,
        batch(1, {"a-s0": 1.0}),
    ]
    first, second = (row.values for row in rows_of(events, ALL))
    rounds = "multi_turn/multi_turn_metric/round_number_min"
    assert (first[rounds], first["perf/non_generation_time/min"]) == (2, pytest.approx(0.2))
    assert (second[rounds], "perf/non_generation_time/min" in second) == (1, False)


def test_what_a_function_says_of_its_turns_goes_before_the_log() -> None:
    said_so = {"round_number": 5, "non_generation_time": 0.1, "raw_reward": True}
    request, done, graded = rollout("a-s0", [-1.0], 0.5, metadata=said_so)
    figures_ = values([request, done, graded, batch(0, {"a-s0": 0.5})], ALL)
    assert figures_["multi_turn/multi_turn_metric/round_number_max"] == 5.0
    assert figures_["perf/non_generation_time/max"] == pytest.approx(0.1)
    assert figures_["rollout/raw_reward"] == 1.0
    wrong = rollout("a-s0", [-1.0], 0.5, metadata={"round_number": "5", "raw_reward": "1"})
    other = values([*wrong, batch(0, {"a-s0": 0.5})], ALL)
    assert (other["multi_turn/multi_turn_metric/round_number_max"], other["rollout/raw_reward"]) == (1, 0.5)


@pytest.mark.parametrize(("train_step", "size", "at"), [(False, 8, 3), (True, None, 3), (True, 8, 6), (True, 5, 9)])
def test_where_a_row_stands_on_the_axis_of_rollouts(train_step: bool, size: int | None, at: int) -> None:
    settings = made.settings(
        metrics={"wandb_always_use_train_step": train_step},
        rollout={"rollout_batch_size": 4, "n_samples_per_prompt": 4},
        trainer={"global_batch_size": size},
    )
    assert values([batch(3, {"a-s0": 1.0})], settings)["rollout/step"] == at
    assert values([HELD], settings)["eval/step"] == at


@pytest.mark.parametrize(("steps", "at"), [(None, 3), (1, 3), (4, 12)])
def test_where_a_row_stands_on_the_axis_of_training(steps: int | None, at: int) -> None:
    settings = made.settings(trainer={"num_steps_per_rollout": steps})
    assert values([replace(COMMITTED, step=3)], settings)["train/step"] == at


def test_there_is_no_waiting_of_less_than_nothing() -> None:
    busy = replace(COMMITTED, seconds={"batch": 0.5, "train": 0.5})
    row = values([busy, replace(busy, step=1, version=2)])
    assert (row["perf/train_wait_time"], row["perf/wait_time_ratio"], row["perf/step_time"]) == (0.0, 0.0, 1.0)
    resumed = made.resumed()
    assert "perf/train_wait_time" not in values([busy, resumed, replace(busy, step=1, version=2)])


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({}, {"actor_train_time": 0.03, "actor_train_tok_per_s": 2000.0}),
        ({"seconds_critic": 0.01}, {"actor_train_time": 0.0, "critic_train_time": 0.01}),
        ({"seconds_optimizer": 0.01, "seconds_gradients": 0.02}, {"actor_train_time": 0.03}),
    ],
)
def test_the_time_of_an_update(metrics: dict[str, float], expected: dict[str, float]) -> None:
    values_ = trainer_metrics(replace(COMMITTED, metrics=metrics), None)
    assert {name: values_[name] for name in expected} == pytest.approx(expected)
    assert ("actor_train_tok_per_s" in values_) is (values_["actor_train_time"] > 0)
    assert values_["train_time"] == pytest.approx(0.05)


def test_a_step_of_no_time_has_no_ratio() -> None:
    idle = replace(COMMITTED, seconds={})
    assert trainer_metrics(idle, 0.0) == {"train_time": 0.0, "actor_train_time": 0.0}
    assert trainer_metrics(idle, 2.0)["wait_time_ratio"] == 1.0


@pytest.mark.parametrize(
    ("metrics", "size"),
    [({"optimizer_steps": 2.0, "samples": 8.0}, 4.0), ({"samples": 8.0}, None), ({"optimizer_steps": 2.0}, None)],
)
def test_the_size_of_a_batch_is_that_of_an_optimizer_step(metrics: dict[str, float], size: float | None) -> None:
    assert train_metrics(replace(COMMITTED, metrics=metrics)).get("global_batch_size") == size


def test_an_evaluation_counts_what_failed_as_wrong_and_forgets_it() -> None:
    first, other = "eval-held-v3-000000", "eval-held-v3-000001"
    events = [
        *rollout(f"{first}-s0", [-1.0, -1.0], 1.0, stop=StopReason.LENGTH),
        *rollout(f"{other}-s0", [-1.0], 0.0)[:2],
        HELD,
        HELD,
    ]
    reported, again = (row.values for row in rows_of(events, ALL))
    assert (reported["eval/held-truncated_ratio"], reported["eval/held/response_len/mean"]) == (0.5, 1.5)
    assert not [name for name in again if name.startswith(("eval/held/", "eval/held-"))]

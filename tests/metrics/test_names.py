"""Names, axes and figures of metrics are slime's."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from schemas.groups import GroupRejected, RejectionCause
from schemas.rollouts import StopReason
from schemas.turns import TurnRole
from slime_events.analysis.metrics.fold import AXES, axis_of
from slime_events.core.config.settings import TrainSettings
from tests import made
from tests.cli.small_run import events
from tests.metrics.rows import EVERYTHING, batch, rollout, rows_of

STATISTICS = ("mean", "median", "max", "min")
ALWAYS = {
    *(f"rollout/response_len/{name}" for name in STATISTICS),
    *("rollout/rewards", "rollout/raw_reward", "rollout/response_lengths", "rollout/total_lengths"),
    *("rollout/truncated", "rollout/truncated_ratio", "rollout/repetition_frac", "rollout/rollout_log_probs"),
    *("rollout/advantages", "perf/rollout_time", "perf/longest_sample_tokens_per_sec"),
    *("perf/longest_effective_sample_tokens_per_sec", "perf/tokens_per_gpu_per_sec"),
    "perf/effective_tokens_per_gpu_per_sec",
}
"""slime's metrics of every batch."""
OURS = {f"rollout/staleness/{name}" for name in STATISTICS}
"""A metric that slime has not."""
LENGTHS = [f"response_length_{name}" for name in ("mean", "max", "min")]
ASKED_FOR = {
    "passrate": {"passrate/pass@1", "passrate/pass@2"},
    "multi_turn": {
        *(f"multi_turn/raw_response_length/{name}" for name in (*LENGTHS, "response_length_clip_ratio")),
        *(f"multi_turn/wo_obs_response_length/{name}" for name in LENGTHS),
        *(f"multi_turn/multi_turn_metric/round_number_{name}" for name in ("mean", "max", "min")),
    },
    "error_cat": {"rollout/error_cat/42"},
    "correct": {
        *(f"rollout/correct_length/p{part}" for part in (25, 50, 75, 100)),
        *("rollout/correct_response_lengths", "rollout/correct_entropy"),
    },
}
TRAINED = {
    "loss": 0.5, "pg_loss": 0.4, "pg_clipfrac": 0.1, "ppo_kl": 0.0, "entropy": 1.5, "grad_norm": 2.0, "lr": 1e-6,
    "train_rollout_logprob_abs_diff": 0.01, "kl_loss": 0.2, "tis": 1.0, "tis_clipfrac": 0.0, "opsm_clipfrac": 0.0,
    "optimizer_steps": 2.0, "samples": 4.0, "seconds_scoring": 0.1, "seconds_forward_backward": 0.2,
    "seconds_gradients": 0.05, "seconds_optimizer": 0.05,
}  # fmt: skip
COMMITTED = made.committed(
    3, batch_digest="", weights_digest="", optimizer_digest="", samples=4, tokens=60, metrics=TRAINED,
    seconds={"batch": 0.5, "train": 1.0, "weights": 0.25},
)  # fmt: skip


def test_a_batch_has_slimes_names_and_no_others() -> None:
    first, *_ = rows_of(list(events()))
    dropped = "rollout/dynamic_filter/drop_zero_std_0.0"
    assert set(first.values) == ALWAYS | OURS | {dropped, "rollout/step"}


def test_what_is_asked_for_is_there_besides() -> None:
    first, *_ = rows_of(list(events()), TrainSettings(metrics=EVERYTHING))
    assert ALWAYS | set().union(*ASKED_FOR.values()) <= set(first.values)


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        ({"log_passrate": True}, ASKED_FOR["passrate"]),
        ({"log_multi_turn": True}, ASKED_FOR["multi_turn"]),
        ({"log_reward_category": "found"}, ASKED_FOR["error_cat"]),
        ({"log_correct_samples": True}, ASKED_FOR["correct"]),
    ],
)
def test_each_flag_adds_its_own_names(flag: dict[str, object], names: set[str]) -> None:
    settings = TrainSettings()
    plain, more = (
        rows_of(list(events()), replace(settings, metrics=replace(settings.metrics, **part)))[0] for part in ({}, flag)
    )
    assert set(more.values) - set(plain.values) == names


def test_a_step_has_slimes_names() -> None:
    (row,) = rows_of([COMMITTED], made.settings(trainer={"num_steps_per_rollout": 2}))
    values = row.values
    same = ("loss", "pg_loss", "pg_clipfrac", "ppo_kl", "grad_norm", "kl_loss", "tis", "tis_clipfrac", "opsm_clipfrac")
    assert {name: values[f"train/{name}"] for name in same} == {name: TRAINED[name] for name in same}
    assert values["train/train_rollout_logprob_abs_diff"] == 0.01
    assert (values["train/entropy_loss"], values["train/lr-pg_0"], values["train/global_batch_size"]) == (1.5, 1e-6, 2)
    assert (values["train/step"], values["rollout/step"]) == (6, 3)
    assert not {"train/entropy", "train/lr"} & set(values)
    assert not [name for name in values if "seconds" in name]
    assert values["perf/train_time"] == 1.5
    assert values["perf/actor_train_time"] == pytest.approx(0.3)
    assert values["perf/actor_train_tok_per_s"] == pytest.approx(200.0)
    assert (values["perf/data_preprocess_time"], values["perf/update_weights_time"]) == (0.5, 0.25)
    assert values["perf/log_probs_time"] == 0.1


def test_appends_that_were_sent_again_are_counted_until_the_next_step() -> None:
    """A name that slime has not, in the rows of steps before which there were some."""
    active = made.activated(1, engine="a")
    activations = [replace(active, refused_batches=count, engine=f"e{count}") for count in (3, 0, 4)]
    rows = rows_of(
        [
            *activations,
            COMMITTED,
            active,
            replace(COMMITTED, step=4, version=5),
            activations[0],
            replace(COMMITTED, step=5),
        ]
    )
    assert [row.values.get("perf/refused_batches") for row in rows] == [7.0, None, 3.0]


def test_a_critic_has_slimes_names() -> None:
    names = {
        "value_loss": "train/critic-value_loss",
        "value_clipfrac": "train/critic-value_clipfrac",
        "critic_grad_norm": "train/critic-grad_norm",
        "critic_lr": "train/critic-lr-pg_0",
        "explained_variance": "train/critic-explained_variance",
        "seconds_critic": "perf/critic_train_time",
        **{name: f"rollout/{name}" for name in ("values", "returns", "advantages")},
    }
    figures = {name: float(number) for number, name in enumerate(names)}
    (row,) = rows_of([replace(COMMITTED, metrics=TRAINED | figures)])
    assert {name: row.values[name] for name in names.values()} == dict(
        zip(names.values(), figures.values(), strict=True)
    )
    assert not [name for name in row.values if name.removeprefix("train/") in figures]


def test_waiting_is_what_lies_between_two_steps() -> None:
    quick = replace(COMMITTED, seconds={"batch": 0.01, "train": 0.04}, metrics={})
    first, second = rows_of([quick, replace(quick, step=4, version=5)])  # a tenth of a second apart
    assert "perf/train_wait_time" not in first.values
    assert second.values["perf/train_wait_time"] == pytest.approx(0.05)
    assert second.values["perf/step_time"] == pytest.approx(0.1)
    assert second.values["perf/wait_time_ratio"] == pytest.approx(0.5)


def test_figures_of_a_batch() -> None:
    events = [
        *rollout("a-s0", [-1.0, -3.0, -9.0, -9.0], 1.0, mask=[1, 1, 0, 0], stop=StopReason.LENGTH),
        *rollout("a-s1", [-1.0], 0.0),
        *rollout("b-s0", [-2.0, -2.0], 1.0, detail={"found": "no"}, metadata={"raw_reward": 3.0}),
        *rollout("b-s1", [-2.0, -2.0], 1.0, text="ab" * 6000),
        batch(4, {"a-s0": 1.0, "a-s1": 0.0, "b-s0": 1.0, "b-s1": 1.0}),
    ]
    settings = made.settings(
        metrics=EVERYTHING, engine={"rollout_num_gpus": 2}, rollout={"rollout_max_response_len": 4}
    )
    ((values,),) = ([row.values for row in rows_of(events, settings)],)
    seconds = 1.2  # from the first request to the seal
    expected = {
        "rollout/rewards": 0.75,
        "rollout/raw_reward": 1.25,  # a generate function said 3 in place of 1
        "rollout/response_lengths": 2.25,
        "rollout/total_lengths": 4.25,
        "rollout/response_len/mean": 1.75,
        "rollout/response_len/median": 2.0,
        "rollout/response_len/max": 2.0,
        "rollout/response_len/min": 1.0,
        "rollout/truncated": 0.25,
        "rollout/truncated_ratio": 0.25,
        "rollout/repetition_frac": 0.25,
        "rollout/rollout_log_probs": (-2 - 1 - 2 - 2) / 4,
        "rollout/staleness/max": 4.0,
        "rollout/zero_std/count_1.0": 1.0,
        "rollout/error_cat/no": 0.25,
        "rollout/error_cat/None": 0.75,
        "rollout/correct_response_lengths": 3.0,
        "rollout/correct_length/p25": 0.0,
        "rollout/correct_length/p50": 0.5,
        "rollout/correct_length/p75": 0.0,
        "rollout/correct_length/p100": 0.5,
        "rollout/correct_entropy": 2.0,
        "passrate/pass@1": 0.75,
        "passrate/pass@2": 1.0,
        "multi_turn/raw_response_length/response_length_mean": 2.25,
        "multi_turn/raw_response_length/response_length_clip_ratio": 0.25,
        "multi_turn/wo_obs_response_length/response_length_max": 2.0,
        "perf/rollout_time": seconds,
        "perf/tokens_per_gpu_per_sec": 9 / seconds / 2,
        "perf/effective_tokens_per_gpu_per_sec": 7 / seconds / 2,
        "perf/longest_sample_tokens_per_sec": 4 / seconds,
        "perf/longest_effective_sample_tokens_per_sec": 2 / seconds,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected)


def test_no_correct_sample_gives_no_figures_of_correct_ones() -> None:
    events = [*rollout("a-s0", [-1.0], 0.0), *rollout("a-s1", [-1.0], 0.0), batch(0, {"a-s0": 0.0, "a-s1": 0.0})]
    (row,) = rows_of(events, TrainSettings(metrics=EVERYTHING))
    assert not [name for name in row.values if "correct" in name]
    assert row.values["passrate/pass@2"] == 0.0


def test_zero_std_is_counted_where_a_prompt_has_several_answers_for_it() -> None:
    events = [*rollout("a-s0", [-1.0], 0.5), *rollout("a-s1", [-1.0], 0.5), batch(0, {"a-s0": 0.5, "a-s1": 0.5})]
    (grpo,), (ppo,) = (
        rows_of(events, made.settings(algorithm={"advantage_estimator": name})) for name in ("grpo", "ppo")
    )
    assert grpo.values["rollout/zero_std/count_0.5"] == 1
    assert not [name for name in ppo.values if "zero_std" in name]


def test_tools_are_no_generation() -> None:
    request, done, graded = rollout("a-s0", [-1.0, -1.0], 1.0)
    turns = [
        made.turn("a-s0"),
        made.turn("a-s0", index=1, role=TurnRole.TOOL, seconds=0.3),
        made.turn("a-s0", index=2),
    ]
    events = [request, *turns, done, graded, *rollout("a-s1", [-1.0], 1.0), batch(0, {"a-s0": 1.0, "a-s1": 1.0})]
    (row,) = rows_of(events, TrainSettings(metrics=EVERYTHING))
    values, seconds = row.values, 0.9
    assert values["multi_turn/multi_turn_metric/round_number_max"] == 2
    assert values["multi_turn/multi_turn_metric/round_number_min"] == 1
    assert values["perf/non_generation_time/max"] == pytest.approx(0.3)
    assert values["perf/longest_sample_non_generation_time"] == pytest.approx(0.3)
    name = "perf/longest_sample_tokens_per_sec_without_non_generation"
    assert values[name] == pytest.approx(2 / (seconds - 0.3))


def test_an_evaluation() -> None:
    group = "eval-held-v2-000000"
    events = [
        *rollout(f"{group}-s0", [-1.0, -1.0], 1.0, stop=StopReason.LENGTH),
        rollout(f"{group}-s1", [-1.0], 0.0)[0],  # this one never ends
        *rollout("eval-held-v3-000000-s0", [-1.0], 1.0),  # of another version
        made.evaluated(2, failed=1),
    ]
    (row,) = rows_of(events, TrainSettings(metrics=EVERYTHING))
    values = row.values
    assert values["eval/held"] == 0.5
    assert (values["eval/held-truncated_ratio"], values["eval/held/truncated_ratio"]) == (1.0, 1.0)
    assert values["eval/held/response_len/mean"] == 2.0
    assert (values["eval/held-pass@1"], values["eval/held-pass@2"]) == (0.5, 1.0)
    assert values["eval/step"] == 2


def test_filtered_groups_are_counted_by_their_reason_until_the_next_batch() -> None:
    def dropped(group: str, cause: RejectionCause) -> GroupRejected:
        return made.rejected(group, cause, reason="zero_std_0.0")

    events = [
        dropped("x", RejectionCause.FILTER),
        dropped("y", RejectionCause.FILTER),
        dropped("z", RejectionCause.ROLLOUT_FAILED),
        batch(0, {"a-s0": 1.0}),
        batch(1, {"b-s0": 1.0}),
    ]
    first, second = rows_of(events)
    assert first.values["rollout/dynamic_filter/drop_zero_std_0.0"] == 2
    assert "rollout/dynamic_filter/drop_zero_std_0.0" not in second.values


def test_a_run_on_the_rollouts_of_another_has_what_its_own_log_has() -> None:
    (row,) = rows_of([batch(0, {"a-s0": 1.0, "a-s1": 0.0})], TrainSettings(metrics=EVERYTHING))
    assert set(row.values) == {
        "rollout/rewards", "rollout/raw_reward", "passrate/pass@1", "passrate/pass@2", "rollout/step"
    }  # fmt: skip


def test_train_steps_on_every_axis() -> None:
    settings = made.settings(
        metrics=replace(EVERYTHING, wandb_always_use_train_step=True),
        rollout={"rollout_batch_size": 4, "n_samples_per_prompt": 4},
        trainer={"global_batch_size": 8, "num_steps_per_rollout": 2},
    )
    sealed, committed = rows_of([batch(3, {"a-s0": 1.0}), COMMITTED], settings)
    assert sealed.values["rollout/step"] == committed.values["rollout/step"] == committed.values["train/step"] == 6


def test_every_metric_has_an_axis_in_its_row_and_a_finite_value() -> None:
    for row in rows_of([*events(), COMMITTED], TrainSettings(metrics=EVERYTHING)):
        for name, value in row.values.items():
            assert name.partition("/")[0] in AXES
            assert axis_of(name) in row.values
            assert math.isfinite(value)


def test_a_log_function_of_the_users_takes_the_place_of_slimes() -> None:
    """slime's trainer logs its own all the same."""
    evaluated = made.evaluated(1, log_function="mine.py:log")
    events = [*rollout("a-s0", [-1.0], 1.0), replace(batch(0, {"a-s0": 1.0}), log_function="mine.py:log"), evaluated]
    (row,) = rows_of(events)
    assert {"rollout/raw_reward", "rollout/response_lengths"} <= set(row.values)
    assert not [name for name in row.values if name.startswith("perf/") or "response_len/" in name]

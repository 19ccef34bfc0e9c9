"""Every setting of the algorithm changes what a rank trains, or is measured, or has a note that it has no effect."""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.algorithms.train_arguments import registered
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.derivations import derive
from slime_events.core.config.rule_checks import without_effect
from slime_events.core.config.settings import TrainSettings
from tests import made
from tests.megatron.tiny import make_batch, make_model

Trainer = Callable[..., Any]
Given = dict[str, Any]

OFF_POLICY: Given = {"use_rollout_logprobs": True}
"""Ratios far from 1 in the first update already."""
KL: Given = {"use_kl_loss": True, "kl_loss_coef": 0.5}
RETURNS: Given = {"advantage_estimator": "reinforce_plus_plus", "normalize_advantages": True}
PPO: Given = {"advantage_estimator": "ppo"}
MIS: Given = {
    "use_tis": True,
    "custom_tis_function_path": "examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp",
    "tis_upper_bound": 1.5,
}
REJECTING: Given = {**MIS, "use_rs": True}

TRAINED: dict[str, tuple[Given, Any]] = {
    "loss_type": ({}, "sft_loss"),
    "advantage_estimator": (OFF_POLICY, "cispo"),
    "eps_clip": (OFF_POLICY, 0.01),
    "eps_clip_high": (OFF_POLICY, 0.01),
    "eps_clip_c": (OFF_POLICY, 1.01),
    "kl_coef": (RETURNS, 0.5),
    "use_kl_loss": ({"kl_loss_coef": 0.5}, True),
    "kl_loss_coef": ({"use_kl_loss": True}, 0.5),
    "kl_loss_type": (KL, "k3"),
    "use_unbiased_kl": (KL | OFF_POLICY, True),
    "entropy_coef": ({}, 0.3),
    "gamma": (RETURNS, 0.5),
    "lambd": (PPO, 0.5),
    "num_critic_only_steps": (PPO, 1),
    "normalize_advantages": ({}, True),
    "calculate_per_token_loss": ({}, True),
    "use_rollout_logprobs": ({}, True),
    "use_tis": ({}, True),
    "tis_clip": ({"use_tis": True}, 1.01),
    "tis_clip_low": ({"use_tis": True}, 0.99),
    "tis_level": (MIS, "sequence"),
    "tis_mode": (MIS, "clip"),
    "tis_lower_bound": ({**MIS, "tis_mode": "clip"}, 0.99),
    "tis_upper_bound": (MIS, 1.01),
    "tis_batch_normalize": (MIS, True),
    "use_rs": (MIS, True),
    "rs_level": (REJECTING, "sequence"),
    "rs_lower_bound": (REJECTING, 0.99),
    "rs_upper_bound": (REJECTING, 1.01),
    "rs_veto_threshold": (REJECTING, 0.9),
    "use_opsm": (OFF_POLICY, True),
    "opsm_delta": (OFF_POLICY | {"use_opsm": True}, 100.0),
    "use_opd": ({}, True),
    "opd_kl_coef": ({"use_opd": True}, 0.5),
}
"""A setting: settings with which it counts, and a value that is not the default."""
SEALED: dict[str, tuple[Given, Any]] = {
    "rewards_normalization": ({}, False),
    "grpo_std_normalization": ({}, False),
}
"""Settings of the batch, which the conductor seals."""
MEASURED = {"get_mismatch_metrics": "mis_kl", "use_rollout_entropy": "rollout_entropy"}
"""A setting that changes no weights, and a metric that it adds."""
CALLED = {name for name in AlgorithmSettings.__struct_fields__ if name.endswith("_path")}
"""In test_user_functions, with disable_compute_advantages_and_returns, which is for those and for a supervised loss."""

IDLE: list[tuple[str, Any, Given]] = [
    ("gamma", 0.5, {}),
    ("lambd", 0.5, {}),
    ("value_clip", 0.5, {}),
    ("num_critic_only_steps", 1, RETURNS),
    ("kl_coef", 0.1, {}),
    ("kl_loss_type", "k3", {}),
    ("use_unbiased_kl", True, {}),
    ("eps_clip_c", 1.01, OFF_POLICY | {"advantage_estimator": "cispo"}),
    ("tis_clip", 1.01, {}),
    ("tis_clip_low", 0.99, {}),
    ("opsm_delta", 0.1, {}),
    ("opd_kl_coef", 0.5, {}),
    ("ref_update_interval", 2, {}),
    ("keep_old_actor", True, OFF_POLICY),
    ("kl_loss_coef", 0.5, {}),
    ("tis_level", "sequence", {}),
    ("rs_upper_bound", 1.1, {}),
    ("eps_clip", 0.01, {"loss_type": "sft_loss"}),
    ("advantage_estimator", "gspo", {"loss_type": "sft_loss"}),
    ("normalize_advantages", True, {"loss_type": "sft_loss"}),
]
IDLE_SEALED: list[tuple[str, Any, Given]] = [
    ("rewards_normalization", False, RETURNS),
    ("grpo_std_normalization", False, RETURNS | {"advantage_estimator": "reinforce_plus_plus_baseline"}),
    ("grpo_std_normalization", False, {"rewards_normalization": False}),
]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference, and the teacher: another checkpoint of the same shape."""
    folder = tmp_path_factory.mktemp("other")
    make_model(folder, seed=1)
    return folder


@pytest.fixture
def trained(tiny: Path, other: Path, trainer: Trainer) -> Callable[[Given], tuple[str, dict[str, float]]]:
    """(digest of the weights, metrics) of a step under these settings."""

    def train(algorithm: Given) -> tuple[str, dict[str, float]]:
        key = repr(sorted(algorithm.items()))
        if key not in KNOWN:
            with trainer(
                tiny, algorithm, ref_load=str(other), opd_teacher_load=str(other), lr=1e-2, clip_grad=0.0
            ) as rank:
                metrics = rank.train(make_batch()).metrics
                digest = hashlib.sha256()
                for name, tensor in sorted(rank.export_weights()):
                    digest.update(name.encode() + tensor.detach().numpy().tobytes())
            KNOWN[key] = digest.hexdigest(), metrics
        return KNOWN[key]

    return train


KNOWN: dict[str, tuple[str, dict[str, float]]] = {}


def sentences(algorithm: Given) -> list[str]:
    settings, notes = derive(made.settings(algorithm=algorithm))
    return [note for note in (*notes, *without_effect(settings, registered())) if "no effect" in note]


def about(name: str, algorithm: Given) -> list[str]:
    return [note for note in sentences(algorithm) if name in note.partition(" ha")[0].split(", ")]


def test_no_setting_is_left_out() -> None:
    elsewhere = CALLED | {"compute_advantages_and_returns", "value_clip"}  # test_critic
    elsewhere |= {"opd_type", "ref_update_interval", "keep_old_actor"}  # test_distillation, test_past_versions
    parts = [set(TRAINED), set(SEALED), set(MEASURED), elsewhere]
    assert functools.reduce(operator.or_, parts) == set(AlgorithmSettings.__struct_fields__)
    assert sum(map(len, parts)) == len(AlgorithmSettings.__struct_fields__)


@pytest.mark.parametrize("name", TRAINED)
def test_it_changes_the_step(name: str, trained: Callable[[Given], tuple[str, dict[str, float]]]) -> None:
    context, value = TRAINED[name]
    assert trained(context | {name: value})[0] != trained(context)[0]
    assert about(name, context | {name: value}) == []


@pytest.mark.parametrize("name", MEASURED)
def test_it_is_measured(name: str, trained: Callable[[Given], tuple[str, dict[str, float]]]) -> None:
    (plain, before), (digest, metrics) = trained({}), trained({name: True})
    assert digest == plain
    assert MEASURED[name] in metrics
    assert MEASURED[name] not in before


def normalised(algorithm: Given) -> list[float]:
    return normalize_rewards([0.0, 1.0, 1.0], [3], AlgorithmSettings(**algorithm))


@pytest.mark.parametrize("name", SEALED)
def test_it_changes_the_batch(name: str) -> None:
    context, value = SEALED[name]
    assert normalised(context | {name: value}) != normalised(context)
    assert about(name, context | {name: value}) == []


@pytest.mark.parametrize(("name", "value", "context"), IDLE)
def test_it_is_said_to_have_no_effect_and_has_none(
    name: str, value: Any, context: Given, trained: Callable[[Given], tuple[str, dict[str, float]]]
) -> None:
    assert about(name, context | {name: value})
    assert trained(context | {name: value})[0] == trained(context)[0]


@pytest.mark.parametrize(("name", "value", "context"), IDLE_SEALED)
def test_it_is_said_to_leave_rewards_as_they_are_and_does(name: str, value: Any, context: Given) -> None:
    assert about(name, context | {name: value})
    assert normalised(context | {name: value}) == normalised(context)


def test_what_was_derived_was_not_given_and_a_user_s_function_may_read_all() -> None:
    settings = TrainSettings()
    single = replace(settings, rollout=replace(settings.rollout, n_samples_per_prompt=1))
    supervised = replace(single, algorithm=AlgorithmSettings(loss_type="sft_loss", eps_clip=0.2))
    for case in (settings, single, supervised):
        assert list(without_effect(derive(case)[0], registered())) == []
    assert sentences({"loss_type": "custom_loss", "custom_loss_function_path": "a.b", "gamma": 0.5, "kl_coef": 1}) == []
    own = {"custom_advantage_function_path": "a.b", "gamma": 0.5, "lambd": 0.5, "kl_coef": 1.0}
    assert sentences(own) == []

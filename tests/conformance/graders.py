"""Families of the built-in graders."""

from __future__ import annotations

from typing import Any

from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.dapo import compute_score, normalize_final_answer
from slime_events.plugins.rewards.deepscaler import get_deepscaler_rule_based_reward
from slime_events.plugins.rewards.dispatch import resolve
from slime_events.plugins.rewards.f1 import f1_score
from slime_events.plugins.rewards.gpqa import compute_gpqa_reward
from slime_events.plugins.rewards.math import grade_answer
from slime_events.plugins.rewards.mathd import mathd_normalize_answer
from slime_events.plugins.sample import Sample

Input = dict[str, Any]


def dapo_normalize(case: Input) -> Any:
    return normalize_final_answer(case["final_answer"])


def math_normalize(case: Input) -> Any:
    return mathd_normalize_answer(case["answer"])


def dapo(case: Input) -> Any:
    return compute_score(case["solution_str"], case["ground_truth"], case["strict_box_verify"])


def deepscaler(case: Input) -> Any:
    return get_deepscaler_rule_based_reward(case["response"], case["label"])


def f1(case: Input) -> Any:
    return f1_score(case["prediction"], case["ground_truth"])


def gpqa(case: Input) -> Any:
    return compute_gpqa_reward(case["response"], case["label"], case["metadata"])


def math(case: Input) -> Any:
    return grade_answer(case["solution"], case["ground_truth"])


def dispatch(case: Input) -> Any:
    sample = Sample(response=case["response"], label=case["label"], metadata=case["metadata"] or {})
    return resolve(RewardSettings(rm_type=case["args.rm_type"]), sample).function(None, sample)

"""Families of the built-in graders."""

from __future__ import annotations

from typing import Any

from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.dapo import compute_score, normalize_final_answer
from slime_events.plugins.rewards.deepscaler import get_deepscaler_rule_based_reward
from slime_events.plugins.rewards.f1 import f1_score
from slime_events.plugins.rewards.gpqa import compute_gpqa_reward
from slime_events.plugins.rewards.math import grade_answer
from slime_events.plugins.rewards.mathd import mathd_normalize_answer
from slime_events.plugins.rewards.registry import resolve
from slime_events.plugins.sample import Sample
from tests.harness.conformance.case import Case


def dapo_normalize(case: Case) -> Any:
    return normalize_final_answer(case.input["final_answer"])


def math_normalize(case: Case) -> Any:
    return mathd_normalize_answer(case.input["answer"])


def dapo(case: Case) -> Any:
    options = {name: case.input[name] for name in ("strict_box_verify",) if name in case.input}
    return compute_score(case.input["solution_str"], case.input["ground_truth"], **options)


def deepscaler(case: Case) -> Any:
    return get_deepscaler_rule_based_reward(case.input["response"], case.input["label"])


def f1(case: Case) -> Any:
    return f1_score(case.input["prediction"], case.input["ground_truth"])


def gpqa(case: Case) -> Any:
    return compute_gpqa_reward(case.input["response"], case.input["label"], case.input.get("metadata"))


def math(case: Case) -> Any:
    return grade_answer(case.input["solution"], case.input["ground_truth"])


def dispatch(case: Case) -> Any:
    """`args.NAME` are settings; the rest is the sample's."""
    params = dict(case.input)
    names = ("rm_type", "custom_rm_path", "reward_key")
    settings = {name: params.pop(f"args.{name}") for name in names if f"args.{name}" in params}
    own = {name: params[name] for name in ("custom_rm_path", "prompt") if params.get(name)}
    sample = Sample(
        response=params["response"], label=params.get("label"), metadata=params.get("metadata") or {}, **own
    )
    return resolve(RewardSettings(**settings), sample).function(None, sample)

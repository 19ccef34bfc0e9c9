"""Families of advantages: returns, whitening, and what each estimator makes of rewards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slime_events.algorithms.advantages import compute_advantages, masked_whiten, token_kl
from slime_events.algorithms.estimators import ESTIMATORS
from slime_events.algorithms.segments import Segments, discounted_returns, gae
from slime_events.core.config.algorithm import AlgorithmSettings
from tests.harness.conformance.case import Case
from tests.harness.conformance.losses import Rows, algorithm, flat, floats, segments_of, split, tensors


def whiten(case: Case) -> Any:
    params = case.input
    options = {name: params[name] for name in ("shift_mean",) if name in params}
    return masked_whiten(floats(params["values"]), torch.tensor(params["mask"]), **options).tolist()


def returns(case: Case) -> Any:
    rows, segments = _grid(case.input["rewards"])
    return split(segments, segments.unpad(discounted_returns(rows, case.input["discount"])))


def gae_rows(case: Case) -> Any:
    params = case.input
    rewards, segments = _grid(params["rewards"])
    values, _ = _grid(params["values"])
    advantages = gae(rewards, values, params["gamma"], params["lambd"])
    results = {"advantages": advantages, "returns": advantages + values}
    return {name: split(segments, segments.unpad(grid)) for name, grid in results.items()}


def _grid(rows: Rows) -> tuple[Tensor, Segments]:
    """[samples, longest], zeros on the right, as the trainer lays them out."""
    segments = segments_of(None, rows)
    return segments.pad(flat(rows)), segments


def grpo_returns(case: Case) -> Any:
    shapes = case.input.get("kl_shapes") or [len(row) for row in case.input["kl"]]
    return _of("grpo", case.input["rewards"], [[0.0] * size for size in shapes])


def reinforce_pp(case: Case) -> Any:
    params = case.input
    return _of("reinforce_plus_plus", params["rewards"], params["kl"], params.get("loss_masks"), params)


def reinforce_pp_baseline(case: Case) -> Any:
    params = case.input
    return _of("reinforce_plus_plus_baseline", params["rewards"], params["kl"], params.get("loss_masks"), params)


def _of(
    name: str, rewards: list[float], kl: Rows, masks: Rows | None = None, params: dict[str, Any] | None = None
) -> Rows:
    """Advantages of an estimator, by sample."""
    settings = algorithm(**{key: value for key, value in (params or {}).items() if key in ("kl_coef", "gamma")})
    segments = segments_of(masks, kl)
    return split(segments, ESTIMATORS[name].advantage(floats(rewards), flat(kl), segments, settings))


def advantages(case: Case) -> Any:
    """KL, advantages and, before whitening, returns of one estimator; PPO's come with the critic's values."""
    params = case.input
    fields = params.get("defaults", {}) | params.get("overrides", {})
    fields = {name: value for name, value in fields.items() if name in AlgorithmSettings.__struct_fields__}
    settings = algorithm(**fields, advantage_estimator=params["estimator"])
    rewards = floats(params["rewards"])
    shape = params.get("log_probs") or params["values"]
    masks = tensors(params.get("loss_masks") or [[1.0] * len(row) for row in shape])
    log_probs = tensors(params.get("log_probs") or [[0.0] * len(row) for row in shape])
    ref = None if params.get("ref_log_probs") is None else tensors(params["ref_log_probs"])
    values = tensors(params["values"]) if params["estimator"] == "ppo" else None
    segments = Segments.of(masks)
    kl = token_kl(log_probs, ref, segments, settings)
    result, targets = compute_advantages(rewards, log_probs, ref, masks, settings, values=values)
    return {"kl": split(segments, kl), "advantages": _lists(result), "returns": _lists(targets)}


def _lists(parts: list[Tensor]) -> Rows:
    return [part.tolist() for part in parts]

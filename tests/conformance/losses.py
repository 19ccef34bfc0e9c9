"""Families of the loss: KL, advantages, policy and value losses, corrections, reduction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from actors.megatron.forward import log_probs_and_entropy
from slime_events.algorithms.advantages import compute_advantages, masked_whiten, token_kl
from slime_events.algorithms.clipped_loss import clipped_policy_loss
from slime_events.algorithms.estimators import ESTIMATORS
from slime_events.algorithms.estimators.cispo import cispo_loss
from slime_events.algorithms.estimators.gspo import gspo_kl
from slime_events.algorithms.mis import Level, MisRule, Mode, mis_weights
from slime_events.algorithms.objective import approx_kl, opsm_mask, token_weights
from slime_events.algorithms.opd import distil
from slime_events.algorithms.segments import Segments, discounted_returns
from slime_events.algorithms.value_model import clipped_value_loss, gae, ppo_advantages
from slime_events.core.config.algorithm import AlgorithmSettings

Input = dict[str, Any]


def _tensors(rows: list[list[float]]) -> list[Tensor]:
    return [torch.tensor(row, dtype=torch.float32) for row in rows]


def _flat(rows: list[list[float]]) -> Tensor:
    return torch.cat(_tensors(rows))


def _lists(parts: list[Tensor]) -> list[list[float]]:
    return [part.tolist() for part in parts]


def _whole(rows: list[list[float]]) -> Segments:
    """Segments of these rows with every token trained on."""
    return Segments.of([torch.ones(len(row)) for row in rows])


def kl(case: Input) -> Any:
    ratio = case.get("importance_ratio")
    return approx_kl(
        torch.tensor(case["log_probs"]),
        torch.tensor(case["log_probs_base"]),
        case["kl_loss_type"],
        None if ratio is None else torch.tensor(ratio),
    ).tolist()


def policy_loss(case: Input) -> Any:
    ratio = torch.tensor(case["ratio (pass ppo_kl = -ln(ratio))"])
    clips = (case["eps_clip"], case["eps_clip_high"], case["eps_clip_c"])
    losses, clipped = clipped_policy_loss(-ratio.log(), torch.tensor(case["advantages"]), *clips)
    return {"pg_losses": losses.tolist(), "clipfrac": clipped.tolist()}


def cispo(case: Input) -> Any:
    ppo_kl = -torch.tensor(case["ratios"]).log()
    log_probs = torch.tensor(case["log_probs"])
    advantages = torch.tensor(case["advantages"])
    losses, clipped = cispo_loss(ppo_kl, log_probs, advantages, case["eps_clip"], case["eps_clip_high"])
    return {"pg_losses": losses.tolist(), "clipfrac": clipped.tolist()}


def gspo(case: Input) -> Any:
    segments = Segments.of(_tensors(case["loss_masks"]))
    ppo_kl = gspo_kl(_flat(case["old_log_probs"]) - _flat(case["log_probs"]), segments)
    return {"ppo_kl": ppo_kl.tolist(), "ratio=exp(-ppo_kl)": (-ppo_kl).exp().tolist()}


def opsm(case: Input) -> Any:
    segments = Segments.of(_tensors(case["loss_masks"]))
    log_ratio = _flat(case["old_log_probs"]) - _flat(case["log_probs"])
    mask = opsm_mask(log_ratio, _flat(case["advantages"]), segments, case["opsm_delta"])
    return {"mask": mask.tolist(), "clipfrac": segments.masked_mean(1 - mask).sum().item()}


def tis(case: Input) -> Any:
    """Both cases are of slime's icepop function: a token whose ratio is out of bounds is left out."""
    train, rollout = torch.tensor(case["train_log_probs"]), torch.tensor(case["rollout_log_probs"])
    rule = MisRule(mode=Mode.MASK, lower=case["tis_clip_low"], upper=case["tis_clip"], veto=None)
    ratio, kept = mis_weights(train, rollout, _whole([case["train_log_probs"]]), rule)
    return {
        "pg_loss": (torch.tensor(case["pg_loss"]) * ratio * kept).tolist(),
        "tis_clipfrac": (1 - kept).tolist(),
        "tis_abs": (ratio - 1).abs().tolist(),
    }


def mis(case: Input) -> Any:
    train = [case["train_log_probs"]]
    rule = MisRule(
        level=Level(case["tis_level"]),
        mode=Mode(case["tis_mode"]),
        lower=case["bounds"][0],
        upper=case["bounds"][1],
        reject=case["use_rs"],
        veto=case["veto"],
        batch_normalize=case["batch_normalize"],
    )
    weights, mask = mis_weights(_flat(train), torch.tensor(case["rollout_log_probs"]), _whole(train), rule)
    return {"weights": [weights.tolist()], "modified_masks": [mask.tolist()]}


def opd(case: Input) -> Any:
    student, teacher = torch.tensor(case["student_log_probs"]), torch.tensor(case["teacher_log_probs"])
    advantages, reverse_kl = distil(torch.tensor(case["advantages"]), student, teacher, case["opd_kl_coef"])
    return {"advantages": advantages.tolist(), "opd_reverse_kl": reverse_kl.tolist()}


def value_loss(case: Input) -> Any:
    values, old = torch.tensor(case["new_values_at_response"]), torch.tensor(case["old_values"])
    losses, clipped = clipped_value_loss(values, old, torch.tensor(case["returns"]), case["value_clip"])
    return {"loss": losses.mean().item(), "value_clipfrac": clipped.mean().item()}


class _Alone:
    """A tensor parallel group of one rank, as far as the trainer looks at it."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def logprob_entropy(case: Input) -> Any:
    """The trainer's pass over the logits. What top-p left out is cut off before; the entropy is of all logits."""
    logits, tokens = torch.tensor(case["logits"]), torch.tensor(case["tokens"])
    keep = torch.tensor(case["log_prob_keep_mask"]).scatter(-1, tokens[:, None], True)
    log_probs, _ = log_probs_and_entropy(logits.masked_fill(~keep, -torch.inf), tokens, _Alone())
    _, entropy = log_probs_and_entropy(logits, tokens, _Alone())
    return {"log_probs": log_probs.tolist(), "entropy": entropy.tolist()}


def loss_reduce(case: Input) -> Any:
    segments = Segments.of(_tensors(case["loss_masks"]))
    weights = token_weights(segments, per_token=case["calculate_per_token_loss"], rollout_denoms=case["sample_denoms"])
    return (torch.tensor(case["x"]) * weights).sum().item()


def whiten(case: Input) -> Any:
    return masked_whiten(torch.tensor(case["values"]), torch.tensor(case["mask"])).tolist()


def returns(case: Input) -> Any:
    return discounted_returns(torch.tensor(case["rewards"]), case["discount"]).tolist()


def gae_rows(case: Input) -> Any:
    rewards, values = torch.tensor(case["rewards"]), torch.tensor(case["values"])
    advantages, targets = gae(rewards, values, case["gamma"], case["lambd"])
    return {"advantages": advantages.tolist(), "returns": targets.tolist()}


def grpo_returns(case: Input) -> Any:
    segments = _whole([[0.0] * size for size in case["kl_shapes"]])
    kl_zeros = torch.zeros(sum(case["kl_shapes"]))
    return _lists(
        segments.split(
            ESTIMATORS["grpo"].advantage(torch.tensor(case["rewards"]), kl_zeros, segments, AlgorithmSettings())
        )
    )


def reinforce_pp(case: Input) -> Any:
    segments = Segments.of(_tensors(case["loss_masks"]))
    settings = AlgorithmSettings(kl_coef=case["kl_coef"], gamma=case["gamma"])
    flat = ESTIMATORS["reinforce_plus_plus"].advantage(
        torch.tensor(case["rewards"]), _flat(case["kl"]), segments, settings
    )
    return _lists(segments.split(flat))


def reinforce_pp_baseline(case: Input) -> Any:
    settings = AlgorithmSettings(kl_coef=case["kl_coef"])
    segments = _whole(case["kl"])
    estimator = ESTIMATORS["reinforce_plus_plus_baseline"]
    flat = estimator.advantage(torch.tensor(case["rewards"]), _flat(case["kl"]), segments, settings)
    return _lists(segments.split(flat))


def advantages(case: Input) -> Any:
    """KL, advantages and, before whitening, returns of one estimator; PPO's come with the critic's values."""
    values = case["defaults"] | case["overrides"]
    is_ppo = case["estimator"] == "ppo"
    settings = AlgorithmSettings(**values, **({} if is_ppo else {"advantage_estimator": case["estimator"]}))
    rewards = torch.tensor(case["rewards"])
    log_probs, ref = _tensors(case["log_probs"]), _tensors(case["ref_log_probs"])
    masks = _tensors(case["loss_masks"])
    segments = Segments.of(masks)
    kl_flat = token_kl(log_probs, ref, segments, settings)
    if is_ppo:
        critic = _flat(case["values"])
        factors = {"kl_coef": settings.kl_coef, "gamma": settings.gamma, "lambd": settings.lambd}
        flat, targets = ppo_advantages(rewards, kl_flat, critic, segments, **factors)
        result, unwhitened = segments.split(flat), segments.split(targets)
    else:
        result = compute_advantages(rewards, log_probs, ref, masks, settings)
        plain = AlgorithmSettings(**{**values, "normalize_advantages": False}, advantage_estimator=case["estimator"])
        unwhitened = compute_advantages(rewards, log_probs, ref, masks, plain)
    return {"kl": _lists(segments.split(kl_flat)), "advantages": _lists(result), "returns": _lists(unwhitened)}

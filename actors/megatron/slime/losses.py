"""slime's functions for a user's loss, under slime's names: `slime.backends.megatron_utils.{loss, cp_utils}` and
`slime.utils.ppo_utils`. With context parallelism every rank has the logits and columns of whole samples, so that
functions that gather or cut for it change nothing, and `mpu` says that there is one such rank (`whole_samples`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import torch
from torch import Tensor

from actors.step.user_functions import sum_of_sample_mean
from schemas.errors import PlugPointError
from slime_events.algorithms.estimators import estimator_of
from slime_events.algorithms.estimators.gspo import gspo_kl
from slime_events.algorithms.objective import opsm_mask, policy_objective, token_weights
from slime_events.algorithms.segments import Segments, gae
from slime_events.core.config.algorithm import AlgorithmSettings

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")
Reduce = Callable[[Tensor], Tensor]


class TemperatureArgs(Protocol):
    """slime's `args`, of which the functions read the temperature."""

    rollout_temperature: float


class OpsmArgs(Protocol):
    """slime's `args`, of which the function reads OPSM's threshold."""

    opsm_delta: float


def get_responses(
    logits: Tensor,
    *,
    args: TemperatureArgs,
    unconcat_tokens: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    apply_temperature: bool = True,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield per sample (logits that predict its response [response, vocabulary], its response's tokens [response]).

    logits: [1, tokens, vocabulary].
    """
    flat, end = logits.squeeze(0), 0
    if apply_temperature and args.rollout_temperature != 1.0:
        flat = flat / args.rollout_temperature
    for tokens, total, response in zip(unconcat_tokens, total_lengths, response_lengths, strict=True):
        end += total
        yield flat[end - response - 1 : end - 1], tokens[-response:]


def get_log_probs_and_entropy(
    logits: Tensor,
    *,
    args: TemperatureArgs,
    unconcat_tokens: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    with_entropy: bool = False,
    **_: object,
) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """Return (an empty tensor, {"log_probs": ..., "entropy": ...}), float32 [response] per sample, with gradient.

    The entropy is included with `with_entropy`.
    """
    samples: dict[str, Any] = {
        "unconcat_tokens": unconcat_tokens,
        "total_lengths": total_lengths,
        "response_lengths": response_lengths,
    }
    parts = list(get_responses(logits, args=args, **samples))
    log_probs, entropy = calculate_log_probs_and_entropy(
        torch.cat([rows for rows, _ in parts]), torch.cat([tokens for _, tokens in parts]), with_entropy=with_entropy
    )
    lengths = list(response_lengths)
    columns = {"log_probs": list(torch.split(log_probs, lengths))}
    if entropy is not None:
        columns["entropy"] = list(torch.split(entropy, lengths))
    return logits.new_empty(0), columns


def compute_log_probs(logits: Tensor, tokens: Tensor, process_group: ProcessGroup | None = None) -> Tensor:
    """Return log-probs [rows, 1] of logits [rows, vocabulary], with gradient, in nats."""
    return calculate_log_probs_and_entropy(logits, tokens, process_group)[0].unsqueeze(-1)


def compute_entropy_from_logits(logits: Tensor, process_group: ProcessGroup | None = None) -> Tensor:
    """Return entropies [rows] of logits [rows, vocabulary], with gradient, in nats."""
    unused_tokens = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    entropy = calculate_log_probs_and_entropy(logits, unused_tokens, process_group, with_entropy=True)[1]
    assert entropy is not None
    return entropy


def calculate_log_probs_and_entropy(
    logits: Tensor, tokens: Tensor, tp_group: ProcessGroup | None = None, with_entropy: bool = False, **_: object
) -> tuple[Tensor, Tensor | None]:
    """Return log-probs and, if `with_entropy`, entropies [rows] of logits [rows, vocabulary], in nats with gradient."""
    from megatron.core import parallel_state  # takes seconds, which a check of a user's file does not need

    from actors.step.log_probs import log_probs_and_entropy

    group = tp_group or parallel_state.get_tensor_model_parallel_group()
    log_probs, entropy = log_probs_and_entropy(logits, tokens, group, entropy_gradient=with_entropy)
    return log_probs, entropy if with_entropy else None


def policy_loss_function(
    args: TemperatureArgs, batch: dict[str, Any], logits: Tensor, _: Reduce
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the policy loss of the run's settings and its metrics, for a user's loss that adds a term."""
    now = get_log_probs_and_entropy(logits, args=args, with_entropy=True, **_lengths(batch))[1]
    own = {name: getattr(args, name) for name in AlgorithmSettings.__struct_fields__ if hasattr(args, name)}
    return policy_objective(
        log_probs=now["log_probs"],
        old_log_probs=batch.get("log_probs") or [part.detach() for part in now["log_probs"]],
        rollout_log_probs=batch["rollout_log_probs"],
        ref_log_probs=batch.get("ref_log_probs"),
        advantages=batch["advantages"],
        loss_masks=batch["loss_masks"],
        rollout_denoms=batch["rollout_mask_sums"],
        entropy=now["entropy"],
        settings=AlgorithmSettings(**own),
    )


def sft_loss_function(
    args: TemperatureArgs, batch: dict[str, Any], logits: Tensor, reduce: Reduce
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the negative log-likelihood of the trained tokens, and the metrics."""
    now = get_log_probs_and_entropy(logits, args=args, **_lengths(batch))[1]
    loss = -reduce(torch.cat(now["log_probs"]))
    return loss, {"loss": loss.detach()}


def _lengths(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: batch[name] for name in ("unconcat_tokens", "total_lengths", "response_lengths")}


def get_sum_of_sample_mean(
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    rollout_mask_sums: Sequence[float] | bool | None = None,
    calculate_per_token_loss: bool = False,
) -> Reduce:
    """Return a function that sums, over samples, the masked means of a value per response token.

    rollout_mask_sums: trained tokens of each sample's rollout. Files for an older slime pass `calculate_per_token_loss`
    at this position.
    """
    if isinstance(rollout_mask_sums, bool):
        return sum_of_sample_mean(loss_masks, None, per_token=rollout_mask_sums)
    return sum_of_sample_mean(loss_masks, rollout_mask_sums, per_token=calculate_per_token_loss)


def all_gather_with_cp(tensor: Tensor, total_length: int, response_length: int) -> Tensor:
    """Return the tensor unchanged: every rank has the whole response."""
    return tensor


def slice_log_prob_with_cp(log_prob: T, total_length: int, response_length: int) -> T:
    """Return the log-probs unchanged: every rank has the whole response."""
    return log_prob


def slice_with_cp(tokens: Tensor, pad_value: object, *_: object, **__: object) -> Tensor:
    """Return the tokens unchanged: every rank has the whole sequence."""
    return tokens


def get_logits_and_tokens_offset_with_cp(total_length: int, response_length: int, *_: object, **__: object) -> NoReturn:
    """Raise PlugPointError: slime's function, too, fails unless samples are cut."""
    raise PlugPointError(
        "get_logits_and_tokens_offset_with_cp: each rank has whole samples, so there are no offsets of parts. Call it "
        "only if mpu.get_context_parallel_world_size() is above 1, as slime does: in your function it is 1"
    )


def get_grpo_returns(rewards: Tensor, kl: Sequence[Tensor]) -> list[Tensor]:
    """Return each sample's reward, repeated for each of its tokens. kl: [response] each, for the shapes."""
    return [torch.ones_like(part) * reward for part, reward in zip(kl, rewards, strict=True)]


def get_reinforce_plus_plus_returns(
    rewards: Tensor,
    kl: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    response_lengths: Sequence[int],
    total_lengths: Sequence[int],
    kl_coef: float,
    gamma: float,
) -> list[Tensor]:
    """Return REINFORCE++'s returns per sample, [response] each, not yet whitened. kl: [response] each."""
    settings = AlgorithmSettings(advantage_estimator="reinforce_plus_plus", kl_coef=kl_coef, gamma=gamma)
    return _advantages(rewards, kl, loss_masks, settings)


def get_reinforce_plus_plus_baseline_advantages(
    rewards: Tensor, kl: Sequence[Tensor], loss_masks: Sequence[Tensor], kl_coef: float
) -> list[Tensor]:
    """Return centered reward - kl_coef * kl of each token, [response] per sample, not yet whitened."""
    settings = AlgorithmSettings(advantage_estimator="reinforce_plus_plus_baseline", kl_coef=kl_coef)
    return _advantages(rewards, kl, loss_masks, settings)


def _advantages(
    rewards: Tensor, kl: Sequence[Tensor], loss_masks: Sequence[Tensor], settings: AlgorithmSettings
) -> list[Tensor]:
    segments = Segments.of(loss_masks)
    return segments.split(estimator_of(settings).advantage(rewards, torch.cat(list(kl)), segments, settings))


def get_advantages_and_returns(
    total_len: int, response_len: int, values: Tensor, rewards: Tensor, gamma: float, lambd: float
) -> tuple[Tensor, Tensor]:
    """Return generalized advantages and returns of a sample's values and token rewards, [response] each."""
    advantages = gae(rewards.unsqueeze(0), values.unsqueeze(0), gamma, lambd).squeeze(0)
    return advantages, advantages + values


def compute_gspo_kl(
    full_log_probs: Sequence[Tensor],
    full_old_log_probs: Sequence[Tensor],
    local_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
) -> Tensor:
    """Return GSPO's KL [tokens]: each sample's masked mean of old - new log-probs, repeated for its tokens."""
    segments = Segments.of(loss_masks)
    return gspo_kl(torch.cat(list(full_old_log_probs)) - torch.cat(list(full_log_probs)), segments)


def compute_opsm_mask(
    args: OpsmArgs,
    full_log_probs: Sequence[Tensor],
    full_old_log_probs: Sequence[Tensor],
    advantages: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Return (OPSM's mask [tokens], number of samples that it masks)."""
    segments = Segments.of(loss_masks)
    log_ratio = torch.cat(list(full_old_log_probs)) - torch.cat(list(full_log_probs))
    kept = opsm_mask(log_ratio, torch.cat(list(advantages)), segments, args.opsm_delta)
    return kept, ((1 - kept) * token_weights(segments, per_token=False)).sum()

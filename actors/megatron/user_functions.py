"""A user's own loss and advantages on a rank: samples by slime's names of the columns, and what came back, checked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from actors.megatron.host_columns import to_user
from slime_events.algorithms.objective import token_weights
from slime_events.algorithms.segments import Segments
from slime_events.core.train_batch import TrainSample
from slime_events.plugins.trainer_points import UserFunction

if TYPE_CHECKING:  # a user's file imports this by slime's names, and is looked at before a run needs Megatron
    from actors.megatron.forward import MicroBatch
    from actors.megatron.trainee import Trainee

PerSample = Mapping[int, Tensor]
"""Of samples by their index, float [response] each."""
FIXED = frozenset({"tokens", "unconcat_tokens", "total_lengths", "response_lengths", "sample_indices"})
"""Columns that the step is dealt out over ranks by."""
BY_TOKEN = frozenset({"loss_masks", "advantages", "returns", "log_probs", "ref_log_probs", "rollout_log_probs"})
"""Columns of a number for each response token."""


def columns(
    samples: Sequence[TrainSample], indices: Sequence[int], device: torch.device, **known: PerSample
) -> dict[str, Any]:
    """Return the samples of these indices on the device: a list for each column, in the order of `indices`.

    known: more columns, in host memory. A column that lacks a sample is left out. Tensors are copies.
    """
    chosen = [samples[index] for index in indices]
    return {
        "unconcat_tokens": [torch.tensor(one.tokens, dtype=torch.int64, device=device) for one in chosen],
        "total_lengths": [one.total_length for one in chosen],
        "response_lengths": [one.response_length for one in chosen],
        "loss_masks": [torch.tensor(one.loss_mask, dtype=torch.int32, device=device) for one in chosen],
        "rewards": [one.reward for one in chosen],
        "raw_reward": [one.raw_reward for one in chosen],
        "truncated": [int(one.truncated) for one in chosen],
        "sample_indices": list(indices),
        **{
            name: [to_user(values[index], device) for index in indices]
            for name, values in known.items()
            if all(index in values for index in indices)
        },
    }


def own_advantages(function: UserFunction, args: Any, data: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """(advantages, returns) that the user's function leaves in `data`, float32 [response] each. data: `columns` of the
    whole step. Raises PlugPointError for anything else.
    """
    function(args, data)
    lengths = data["response_lengths"]
    found = []
    for name in ("advantages", "returns"):
        # slime's own estimators but ppo have one for both.
        parts = data.get(name, data.get("advantages"))
        if not isinstance(parts, list | tuple) or [tuple(getattr(one, "shape", ())) for one in parts] != [
            (length,) for length in lengths
        ]:
            wanted = f"rollout_data[{name!r}]: a tensor for each sample, of its response's length"
            raise function.refuse(parts, wanted)
        found.append([one.detach().float() for one in parts])
    return found[0], found[1]


def postprocessed(function: UserFunction, args: Any, step: int, data: dict[str, Any]) -> dict[str, list[Any]]:
    """The columns as the user's function leaves them, with those that it adds. data: `columns` of the whole step, whose
    tensors stay as they are. Raises PlugPointError for a column that cannot be trained on.
    """
    given = {name: [one.clone() if isinstance(one, Tensor) else one for one in part] for name, part in data.items()}
    function(*((args, step, given) if function.positional == 3 else (args, given)))
    lengths = [(length,) for length in data["response_lengths"]]
    for name in data | given:
        parts, wanted = given.get(name), f"rollout_data[{name!r}]"
        if name in FIXED and not _are_equal(parts, data[name]):
            raise function.refuse(parts, f"{wanted} as it was: the micro batches follow from it")
        if name in BY_TOKEN and (not _is_column(parts, lengths) or [_shape(one) for one in parts] != lengths):
            raise function.refuse(parts, f"{wanted}: a tensor for each sample, of its response's length")
    masks = torch.cat(given["loss_masks"])
    if bool(((masks != 0) & (masks != 1)).any()):
        raise function.refuse(masks, "rollout_data['loss_masks']: 1 for each token to train on, else 0")
    left = {name: parts for name, parts in given.items() if name not in FIXED and _is_column(parts, lengths)}
    return {name: [_plain(name, one) for one in parts] for name, parts in left.items()}


def _is_column(parts: object, lengths: Sequence[Any]) -> TypeGuard[Sequence[Any]]:
    return isinstance(parts, list | tuple | Tensor) and len(parts) == len(lengths)


def _are_equal(one: object, other: list[Any]) -> bool:
    """Whether two columns hold the same."""
    if not _is_column(one, other):
        return False
    return all(torch.equal(a, b) if isinstance(b, Tensor) else a == b for a, b in zip(one, other, strict=True))


def _shape(one: object) -> tuple[int, ...]:
    return tuple(getattr(one, "shape", ()))


def _plain(name: str, one: Any) -> Any:
    """An entry of a column, in the type that the trainer has it in."""
    if name in BY_TOKEN:
        return one.detach().int() if name == "loss_masks" else one.detach().float()
    return one.detach() if isinstance(one, Tensor) else one


def whole_logits(trainee: Trainee, packed: MicroBatch) -> Tensor:
    """float32 [1, tokens, vocabulary / tensor parallel ranks] of every position, not divided by the temperature."""
    every = copy.copy(packed.packed)
    every.rows = None
    logits: Tensor = trainee.model(packed.token_ids, packed.position_ids, None, packed_seq_params=every)
    return logits.float()


def sum_of_sample_mean(
    masks: Sequence[Tensor], denominators: Sequence[float] | None, *, per_token: bool
) -> Callable[[Tensor], Tensor]:
    """slime's reduction of a value per response token, samples end to end: the sum over samples of masked means, or
    over trained tokens.
    """
    segments = Segments.of(masks)
    weights = token_weights(segments, per_token=per_token, rollout_denoms=denominators)

    def reduce(values: Tensor) -> Tensor:
        return (values.masked_fill(~segments.mask, 0.0) * weights).sum()

    return reduce


def own_loss(
    function: UserFunction, args: Any, batch: dict[str, Any], logits: Tensor, reduce: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, figures) of the user's function: sums over the micro batch's samples, scalars. Raises PlugPointError for
    anything else.
    """
    returned = function(args, batch, logits, reduce)
    wanted = "(loss, metrics): a number that has a gradient, and numbers by name"
    if not (isinstance(returned, tuple | list) and len(returned) == 2 and isinstance(returned[1], Mapping)):
        raise function.refuse(returned, wanted)
    loss, metrics = returned
    if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
        raise function.refuse(loss, wanted)
    try:
        figures = {
            str(name): torch.as_tensor(value, dtype=torch.float32).detach().reshape(())
            for name, value in metrics.items()
        }
    except (TypeError, ValueError, RuntimeError):
        raise function.refuse(metrics, wanted) from None
    return loss.reshape(()), {"loss": loss.detach().reshape(()), **figures}

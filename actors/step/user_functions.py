"""A user's loss and advantages on a rank: columns under slime's names, and checks of what the functions return."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor

from actors.step.host_columns import to_user
from slime_events.algorithms.objective import token_weights
from slime_events.algorithms.segments import Segments
from slime_events.core.training.train_batch import TrainSample
from slime_events.plugins.trainer_points import UserFunction

PerSample = Mapping[int, Tensor]
"""A column by index of the sample, float [response] each."""
FIXED = frozenset({"tokens", "unconcat_tokens", "total_lengths", "response_lengths", "sample_indices"})
"""Columns that determine how the step is divided over ranks."""
BY_TOKEN = frozenset({"loss_masks", "advantages", "returns", "log_probs", "ref_log_probs", "rollout_log_probs"})
"""Columns with a number per response token."""


def columns(
    samples: Sequence[TrainSample], indices: Sequence[int], device: torch.device, **more: PerSample
) -> dict[str, Any]:
    """Return the samples of these indices on the device: a list per column, in the order of `indices`.

    more: further columns, in host memory. A column that lacks a sample is left out. Tensors are copies.
    """
    chosen = [samples[index] for index in indices]
    return {
        "unconcat_tokens": [torch.tensor(sample.tokens, dtype=torch.int64, device=device) for sample in chosen],
        "total_lengths": [sample.total_length for sample in chosen],
        "response_lengths": [sample.response_length for sample in chosen],
        "loss_masks": [torch.tensor(sample.loss_mask, dtype=torch.int32, device=device) for sample in chosen],
        "rewards": [sample.reward for sample in chosen],
        "raw_reward": [sample.raw_reward for sample in chosen],
        "truncated": [int(sample.truncated) for sample in chosen],
        "sample_indices": list(indices),
        **{
            name: [to_user(values[index], device) for index in indices]
            for name, values in more.items()
            if all(index in values for index in indices)
        },
    }


def own_advantages(function: UserFunction, args: object, data: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the (advantages, returns) that the user's function puts into `data`, float32 [response] each.

    data: `columns` of the whole step. Raises PlugPointError if a column does not fit.
    """
    function(args, data)
    lengths = data["response_lengths"]
    results = []
    for name in ("advantages", "returns"):
        # slime's estimators except ppo have the same column for both.
        parts = data.get(name, data.get("advantages"))
        if not isinstance(parts, list | tuple) or [_shape(part) for part in parts] != [(length,) for length in lengths]:
            raise function.refuse(parts, f"rollout_data[{name!r}]: a tensor per sample, as long as its response")
        results.append([part.detach().float() for part in parts])
    return results[0], results[1]


def postprocessed(function: UserFunction, args: object, step: int, data: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the columns after the user's function, with those that it adds.

    data: `columns` of the whole step, whose tensors are not changed. Raises PlugPointError for a column that cannot be
    trained on.
    """
    after: dict[str, Any] = {name: [_clone(entry) for entry in part] for name, part in data.items()}
    function(*((args, step, after) if function.positional == 3 else (args, after)))
    lengths = [(length,) for length in data["response_lengths"]]
    for name in data | after:
        parts, expected = after.get(name), f"rollout_data[{name!r}]"
        if name in FIXED and not _are_equal(parts, data[name]):
            raise function.refuse(parts, f"{expected} unchanged, since it determines the micro batches")
        if name in BY_TOKEN and (not _is_column(parts, lengths) or [_shape(part) for part in parts] != lengths):
            raise function.refuse(parts, f"{expected}: a tensor per sample, as long as its response")
    masks = torch.cat(after["loss_masks"])
    if bool(((masks != 0) & (masks != 1)).any()):
        raise function.refuse(masks, "rollout_data['loss_masks']: 1 for each trained token, else 0")
    left = {name: parts for name, parts in after.items() if name not in FIXED and _is_column(parts, lengths)}
    return {name: [_plain(name, entry) for entry in parts] for name, parts in left.items()}


def _clone(entry: object) -> object:
    return entry.clone() if isinstance(entry, Tensor) else entry


def _is_column(parts: object, lengths: Sequence[Any]) -> TypeGuard[Sequence[Any]]:
    return isinstance(parts, list | tuple | Tensor) and len(parts) == len(lengths)


def _are_equal(parts: object, before: list[Any]) -> bool:
    if not _is_column(parts, before):
        return False
    return all(torch.equal(a, b) if isinstance(b, Tensor) else a == b for a, b in zip(parts, before, strict=True))


def _shape(entry: object) -> tuple[int, ...]:
    """Return the shape of a tensor, and () for any other value: a numpy array of the right length is no tensor."""
    return tuple(entry.shape) if isinstance(entry, Tensor) else ()


def _plain(name: str, entry: Any) -> object:
    """Return an entry of a column without gradient, in the trainer's dtype."""
    if name in BY_TOKEN:
        return entry.detach().int() if name == "loss_masks" else entry.detach().float()
    return entry.detach() if isinstance(entry, Tensor) else entry


def sum_of_sample_mean(
    masks: Sequence[Tensor], denominators: Sequence[float] | None, *, per_token: bool
) -> Callable[[Tensor], Tensor]:
    """Return slime's reduction of a value per response token, [tokens of all samples].

    It is the sum over samples of masked means or, with `per_token`, the sum over trained tokens.
    """
    segments = Segments.of(masks)
    weights = token_weights(segments, per_token=per_token, rollout_denoms=denominators)

    def reduce(values: Tensor) -> Tensor:
        return (values.masked_fill(~segments.mask, 0.0) * weights).sum()

    return reduce


def own_loss(
    function: UserFunction, args: object, batch: dict[str, Any], logits: Tensor, reduce: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the (loss, metrics) of the user's function: scalars, summed over the micro batch's samples.

    Raises PlugPointError for any other result.
    """
    returned = function(args, batch, logits, reduce)
    expected = "(loss, metrics): a number that has a gradient, and numbers by name"
    if not (isinstance(returned, tuple | list) and len(returned) == 2 and isinstance(returned[1], Mapping)):
        raise function.refuse(returned, expected)
    loss, metrics = returned
    if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
        raise function.refuse(loss, expected)
    try:
        figures = {
            str(name): torch.as_tensor(value, dtype=torch.float32).detach().reshape(())
            for name, value in metrics.items()
        }
    except (TypeError, ValueError, RuntimeError):
        raise function.refuse(metrics, expected) from None
    return loss.reshape(()), {"loss": loss.detach().reshape(()), **figures}

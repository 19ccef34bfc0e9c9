"""Which samples go through the model together: pure decisions, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence

from actors.megatron.architecture import Architecture
from slime_events.core.config.trainer import TrainerSettings

# Without a limit from the user: as many tokens as give large matrix products and keep about this much for backward.
DEFAULT_BYTES = 2**30
DEFAULT_TOKENS = (512, 16_384)


def micro_batches(
    lengths: Sequence[int], settings: TrainerSettings, architecture: Architecture, *, cpu: bool
) -> list[list[int]]:
    """Indices of the samples of each micro batch. lengths: prompt + response of each sample, tokens.

    With `use_dynamic_batch_size`: first fit under `max_tokens_per_gpu`. Without it `micro_batch_size` samples each,
    except that on the CPU the default of 1 stands for first fit under `default_tokens`: a packed micro batch has no
    padding, so that one sample at a time only costs speed. A sample above the limit goes alone.
    """
    if settings.use_dynamic_batch_size or (cpu and settings.micro_batch_size == 1):
        limit = settings.max_tokens_per_gpu if settings.use_dynamic_batch_size else None
        return first_fit(lengths, limit or default_tokens(architecture))
    size = settings.micro_batch_size
    return [list(range(begin, min(begin + size, len(lengths)))) for begin in range(0, len(lengths), size)]


def default_tokens(architecture: Architecture) -> int:
    """Tokens whose activations take about `DEFAULT_BYTES`, within `DEFAULT_TOKENS`.

    Counted in float32: some 14 tensors of the hidden size and 5 of the feed-forward size in each layer, and logits,
    softmax and their gradient.
    """
    layer = 14 * architecture.hidden_size + 5 * architecture.ffn_hidden_size
    per_token = 4 * (architecture.num_layers * layer + 3 * architecture.vocab_size)
    lowest, highest = DEFAULT_TOKENS
    return max(lowest, min(highest, DEFAULT_BYTES // per_token))


def first_fit(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Each index into the first bin where it still fits under `limit`, in order."""
    bins: list[list[int]] = []
    free: list[int] = []
    for index, length in enumerate(lengths):
        for place, room in enumerate(free):
            if length <= room:
                bins[place].append(index)
                free[place] -= length
                break
        else:
            bins.append([index])
            free.append(limit - length)
    return bins

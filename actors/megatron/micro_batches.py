"""Which samples go through the model together: pure decisions, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence

from slime_events.config.trainer import TrainerSettings

# Without a limit from the user: as many tokens as give large matrix products, and logits of at most half a GiB.
DEFAULT_TOKENS = 16_384
DEFAULT_LOGIT_BYTES = 2**29


def micro_batches(lengths: Sequence[int], settings: TrainerSettings, vocab_size: int, *, cpu: bool) -> list[list[int]]:
    """Indices of the samples of each micro batch. lengths: prompt + response of each sample, tokens.

    With `use_dynamic_batch_size`: first fit under `max_tokens_per_gpu`. Without it `micro_batch_size` samples each,
    except that on the CPU the default of 1 stands for first fit under a limit of our own: a packed micro batch has no
    padding, so that one sample at a time only costs speed. A sample above the limit goes alone.
    """
    if settings.use_dynamic_batch_size and settings.max_tokens_per_gpu:
        return first_fit(lengths, settings.max_tokens_per_gpu)
    if settings.use_dynamic_batch_size or (cpu and settings.micro_batch_size == 1):
        return first_fit(lengths, max(2048, min(DEFAULT_TOKENS, DEFAULT_LOGIT_BYTES // (4 * vocab_size))))
    size = settings.micro_batch_size
    return [list(range(begin, min(begin + size, len(lengths)))) for begin in range(0, len(lengths), size)]


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

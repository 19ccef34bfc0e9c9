"""What the trainer splits a batch by: whether a sample can be trained on, and how micro batches are packed. Pure."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from actors.megatron.architecture import Architecture
from schemas.errors import TrainerError
from slime_events.algorithms.packing import PackingRule, micro_batches
from slime_events.algorithms.prefix_tree import Branch, branches, families
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.train_batch import TrainBatch, TrainSample

log = logging.getLogger(__name__)
# Without a limit from the user: as many tokens as give large matrix products and keep about this much for backward.
DEFAULT_BYTES = 2**30
DEFAULT_TOKENS = (512, 16_384)


def check_samples(samples: Sequence[TrainSample], vocab_size: int) -> None:
    """Raise TrainerError for the first sample whose arrays do not fit together or the model."""
    for sample in samples:
        response = sample.response_length
        reason = None
        if not 0 < response < sample.total_length:
            reason = f"response of {response} in {sample.total_length} tokens; prompt and response need at least 1 each"
        elif len(sample.loss_mask) != response or len(sample.rollout_log_probs) != response:
            reason = (
                f"response of {response} tokens with {len(sample.loss_mask)} loss mask entries and "
                f"{len(sample.rollout_log_probs)} rollout log-probs"
            )
        elif int(sample.tokens.max()) >= vocab_size or int(sample.tokens.min()) < 0:
            reason = f"a token outside of the vocabulary of {vocab_size}"
        elif not math.isfinite(sample.reward):
            reason = f"reward {sample.reward}"
        if reason:
            raise TrainerError(f"sample {sample.sample} of group {sample.group} cannot be trained on: {reason}")


def checked_batch(batch: TrainBatch, vocab_size: int) -> TrainBatch:
    """The batch as it is trained on. Raises as `check_samples`."""
    batch = replace(batch, samples=without_foreign_ids(batch.samples, vocab_size))
    check_samples(batch.samples, vocab_size)
    return batch


def without_foreign_ids(samples: Sequence[TrainSample], vocab_size: int) -> tuple[TrainSample, ...]:
    """The samples, of which those with a token that the model does not have are not trained on: 0 stands in its place.

    None is sealed any more. So a batch is trained that an older version sealed, and that ended its trainer each time.
    Whoever trains it again does the same, since it follows from the batch alone.
    """
    kept = []
    for sample in samples:
        foreign = (sample.tokens < 0) | (sample.tokens >= vocab_size)
        if foreign.any():
            token = int(sample.tokens[foreign][0])
            log.warning(
                "sample %s of group %s is not trained on: token %d is not in the model's vocabulary of %d",
                sample.sample, sample.group, token, vocab_size,
            )  # fmt: skip
            tokens, mask = np.where(foreign, 0, sample.tokens).astype(np.int32), np.zeros_like(sample.loss_mask)
            sample = replace(sample, tokens=tokens, loss_mask=mask, rollout_log_probs=np.zeros(len(mask), np.float32))
        kept.append(sample)
    return tuple(kept)


def packing_rule(
    settings: TrainerSettings, architecture: Architecture, ranks: int, *, cpu: bool, scoring: bool = False
) -> PackingRule:
    """How micro batches are packed for `ranks` data parallel ranks. scoring: for log-probs without a gradient.

    With `use_dynamic_batch_size`: first fit under `max_tokens_per_gpu` of each context parallel rank. Without it
    `micro_batch_size` samples each, except that on the CPU the default of 1 stands for first fit under
    `default_tokens`: a packed micro batch has no padding, so that one sample at a time only costs speed.
    """
    tokens = None
    if settings.use_dynamic_batch_size or (cpu and settings.micro_batch_size == 1):
        own = settings.log_probs_max_tokens_per_gpu if scoring else None
        limit = (own or settings.max_tokens_per_gpu) if settings.use_dynamic_batch_size else None
        tokens = (limit or default_tokens(architecture)) * settings.context_parallel_size
    return PackingRule(tokens, settings.micro_batch_size, ranks, settings.balance_data)


def split_trees(
    sequences: Sequence[npt.NDArray[np.int32]], rule: PackingRule, architecture: Architecture, *, by_work: bool
) -> list[list[list[int]]]:
    """`micro_batches` of sequences of tokens where those that share a prefix stay together, and it counts once. No
    rank is idle where there are sequences enough. by_work: make micro batches of equal work.
    """
    lengths = [len(sequence) for sequence in sequences]
    tree = branches(sequences, partial(sharing_pays, architecture))
    size = partial(branch_tokens, architecture, lengths)
    units = families(tree, size, rule.max_tokens or sum(lengths), least=rule.ranks)
    work = [_work(unit, lengths, architecture) for unit in units] if by_work else None
    dealt = micro_batches([sum(map(size, unit)) for unit in units], rule, work)
    return [[sorted(one.index for place in places for one in units[place]) for places in batches] for batches in dealt]


def branch_tokens(architecture: Architecture, lengths: Sequence[int], branch: Branch) -> int:
    """Tokens whose activations take as much as a branch does: its own, and the keys and values of its whole path, which
    are laid out for it once more.
    """
    length = lengths[branch.index]
    if not branch.shared:
        return length
    laid_out = 2 * architecture.num_query_groups * architecture.kv_channels / _values(architecture)
    return length - branch.shared + math.ceil(length * laid_out)


def _work(family: Sequence[Branch], lengths: Sequence[int], architecture: Architecture) -> int:
    return sum(forward_flops(architecture, lengths[one.index] - one.shared, one.shared) for one in family)


def default_tokens(architecture: Architecture) -> int:
    """Tokens whose activations take about `DEFAULT_BYTES`, within `DEFAULT_TOKENS`.

    Counted in float32: the layers' values, and logits, softmax and their gradient.
    """
    per_token = 4 * (architecture.num_layers * _values(architecture) + 3 * architecture.vocab_size)
    lowest, highest = DEFAULT_TOKENS
    return max(lowest, min(highest, DEFAULT_BYTES // per_token))


def _values(architecture: Architecture) -> int:
    """What a layer keeps of a token for backward: some 14 tensors of the hidden size and 5 of the feed-forward size."""
    return 14 * architecture.hidden_size + 5 * architecture.ffn_hidden_size


def forward_flops(architecture: Architecture, tokens: int, after: int = 0) -> int:
    """Floating point operations of a forward pass over one sequence, or over what follows its first `after` tokens, a
    multiply and an add being two: the matrix products of each layer, attention, and the output layer.
    """
    output = 2 * tokens * architecture.hidden_size * architecture.vocab_size
    return architecture.num_layers * layer_flops(architecture, tokens, after) + output


def layer_flops(architecture: Architecture, tokens: int, after: int = 0) -> int:
    """Those of one layer. Causal attention is half of tokens^2; behind other tokens all keys are multiplied."""
    queries = architecture.num_attention_heads * architecture.kv_channels
    keys = architecture.num_query_groups * architecture.kv_channels
    products = architecture.hidden_size * (2 * queries + 2 * keys + 3 * architecture.ffn_hidden_size)
    return 2 * tokens * (products + queries * (2 * (after + tokens) if after else tokens))


def sharing_pays(architecture: Architecture, shared: int, tokens: int) -> bool:
    """Whether a sequence is less work where its first tokens are taken from another one that begins so. The output
    layer is left out: it does not look at prompts anyway.
    """
    return layer_flops(architecture, tokens - shared, shared) < layer_flops(architecture, tokens)


def rollout_denominators(samples: Sequence[TrainSample]) -> list[float] | None:
    """Trained tokens of each sample's whole rollout, where a rollout became several samples; None where none did."""
    tokens: Counter[str] = Counter()
    for sample in samples:
        tokens[sample.rollout] += int(sample.loss_mask.sum())
    if len(tokens) == len(samples):
        return None
    return [float(tokens[sample.rollout]) for sample in samples]

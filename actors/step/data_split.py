"""Checks of samples, and the division of a batch into micro batches. Pure."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from schemas.errors import TrainerError
from slime_events.algorithms.packing import PackingRule, micro_batches
from slime_events.algorithms.prefix_tree import Branch, branches, families
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.training.train_batch import TrainBatch, TrainSample

log = logging.getLogger(__name__)
# Default limit of a micro batch: enough tokens for large matrix products, within this memory for backward.
DEFAULT_BYTES = 2**30
DEFAULT_TOKENS = (512, 16_384)


class ModelSizes(Protocol):
    """Sizes of a decoder, from which the work and memory of a micro batch are estimated."""

    @property
    def num_layers(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def active_ffn_size(self) -> int: ...
    @property
    def attention_weights(self) -> int: ...
    @property
    def attention_width(self) -> int: ...
    @property
    def key_value_size(self) -> int: ...
    @property
    def layer_values(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


def check_samples(samples: Sequence[TrainSample], vocab_size: int) -> None:
    """Raise TrainerError for the first sample whose arrays do not fit together or do not fit the model."""
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
    """Return the batch without foreign ids. Raises as `check_samples`."""
    batch = replace(batch, samples=without_foreign_ids(batch.samples, vocab_size))
    check_samples(batch.samples, vocab_size)
    return batch


def without_foreign_ids(samples: Sequence[TrainSample], vocab_size: int) -> tuple[TrainSample, ...]:
    """Exclude samples with tokens outside of the vocabulary from training, and replace these tokens with 0.

    Only older versions sealed such samples, and their batches crashed the trainer. Retraining gives the same result,
    since the replacement depends only on the batch.
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
    settings: TrainerSettings, model: ModelSizes, ranks: int, *, cpu: bool, scoring: bool = False
) -> PackingRule:
    """Return the packing rule for `ranks` data parallel ranks. scoring: pack for log-probs without a gradient.

    With `use_dynamic_batch_size`, micro batches are first fit under `max_tokens_per_gpu` of each context parallel rank.
    Without it they have `micro_batch_size` samples each, except that on the CPU the default of 1 means first fit under
    `default_tokens`: packed micro batches have no padding, so that single samples would only be slower.
    """
    tokens = None
    if settings.use_dynamic_batch_size or (cpu and settings.micro_batch_size == 1):
        own = settings.log_probs_max_tokens_per_gpu if scoring else None
        limit = (own or settings.max_tokens_per_gpu) if settings.use_dynamic_batch_size else None
        tokens = (limit or default_tokens(model)) * settings.context_parallel_size
    return PackingRule(tokens, settings.micro_batch_size, ranks, settings.balance_data)


def split_trees(
    sequences: Sequence[npt.NDArray[np.int32]], rule: PackingRule, model: ModelSizes, *, by_work: bool
) -> list[list[list[int]]]:
    """Return `micro_batches` of token sequences that keep sequences with a common prefix together and count it once.

    If there are enough sequences, no rank is idle. by_work: balance the work of micro batches.
    """
    lengths = [len(sequence) for sequence in sequences]
    tree = branches(sequences, partial(sharing_pays, model))
    size = partial(branch_tokens, model, lengths)
    units = families(tree, size, rule.max_tokens or sum(lengths), least=rule.ranks)
    work = [_work(unit, lengths, model) for unit in units] if by_work else None
    dealt = micro_batches([sum(map(size, unit)) for unit in units], rule, work)
    return [
        [sorted(branch.index for place in places for branch in units[place]) for places in batches] for batches in dealt
    ]


def branch_tokens(model: ModelSizes, lengths: Sequence[int], branch: Branch) -> int:
    """Return the number of tokens whose activations need as much memory as a branch.

    A branch needs memory for its own tokens, and for the keys and values of its whole path, which are copied for it.
    """
    length = lengths[branch.index]
    if not branch.shared:
        return length
    laid_out = model.key_value_size / model.layer_values
    return length - branch.shared + math.ceil(length * laid_out)


def _work(family: Sequence[Branch], lengths: Sequence[int], model: ModelSizes) -> int:
    return sum(forward_flops(model, lengths[branch.index] - branch.shared, branch.shared) for branch in family)


def default_tokens(model: ModelSizes) -> int:
    """Return the number of tokens whose activations need about `DEFAULT_BYTES`, within `DEFAULT_TOKENS`.

    The estimate counts the layers' values, logits, softmax and their gradient, in float32.
    """
    per_token = 4 * (model.num_layers * model.layer_values + 3 * model.vocab_size)
    lowest, highest = DEFAULT_TOKENS
    return max(lowest, min(highest, DEFAULT_BYTES // per_token))


def forward_flops(model: ModelSizes, tokens: int, after: int = 0) -> int:
    """Return the floating point operations of a forward pass over `tokens` tokens that follow `after` other tokens.

    It counts the matrix products of each layer, attention and the output layer; a multiply-add is two operations.
    """
    output = 2 * tokens * model.hidden_size * model.vocab_size
    return model.num_layers * layer_flops(model, tokens, after) + output


def layer_flops(model: ModelSizes, tokens: int, after: int = 0) -> int:
    """Return the operations of a layer. Causal attention is half of tokens^2; after other tokens all keys count."""
    products = model.attention_weights + 3 * model.hidden_size * model.active_ffn_size
    return 2 * tokens * (products + model.attention_width * (2 * (after + tokens) if after else tokens))


def sharing_pays(model: ModelSizes, shared: int, tokens: int) -> bool:
    """Return whether a sequence is less work if its first `shared` tokens are shared with another sequence.

    The output layer is left out, since it does not process prompts.
    """
    return layer_flops(model, tokens - shared, shared) < layer_flops(model, tokens)


def rollout_denominators(samples: Sequence[TrainSample]) -> list[float] | None:
    """Return the trained tokens of each sample's whole rollout; None if every rollout has a single sample."""
    tokens: Counter[str] = Counter()
    for sample in samples:
        tokens[sample.rollout] += int(sample.loss_mask.sum())
    if len(tokens) == len(samples):
        return None
    return [float(tokens[sample.rollout]) for sample in samples]

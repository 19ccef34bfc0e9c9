"""The bytes that a plan counts, against those of models that are there: a rank's state, and what backward keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.megatron.activations import activation_bytes
from actors.megatron.families.registry import read_architecture
from actors.megatron.layout import Layout
from actors.megatron.memory import rank_memory
from slime_events.core.planning.assumptions import Assumptions
from slime_events.core.training.train_batch import TrainBatch, TrainSample
from tests.megatron.recomputing import FULL, recomputing
from tests.megatron.tiny import make_model

FAMILIES = ("qwen3", "glm4", "deepseek_v3", "qwen3_moe")
TOKENS = 256
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 192, "vocab_size": 64}


def one_sample(tokens: int) -> TrainBatch:
    random = np.random.default_rng(0)
    sample = TrainSample(
        sample="0-0-0", group="0-0", rollout="0-0-0", tokens=random.integers(0, 64, tokens).astype(np.int32),
        response_length=tokens - 1, loss_mask=np.ones(tokens - 1, np.int8),
        rollout_log_probs=np.full(tokens - 1, -4, np.float32), reward=1.0, raw_reward=1.0, oldest_version=0,
        newest_version=0,
    )  # fmt: skip
    return TrainBatch(step=0, samples=(sample,))


class Kept:
    """A tensor that autograd keeps. It tells its counter when autograd lets go of it."""

    def __init__(self, tensor: Tensor, counter: Counter) -> None:
        self.tensor, self._counter = tensor, counter
        self._block = tensor.untyped_storage().data_ptr()
        counter.add(self._block, tensor.untyped_storage().nbytes())

    def __del__(self) -> None:
        self._counter.drop(self._block)


class Counter:
    """Bytes of the blocks of memory that are kept, each once."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self._uses: dict[int, list[int]] = {}
        self.most = 0

    def add(self, block: int, size: int) -> None:
        if block not in self._own:
            self._uses.setdefault(block, []).append(size)
            self.most = max(self.most, sum(sizes[0] for sizes in self._uses.values()))

    def drop(self, block: int) -> None:
        if sizes := self._uses.get(block):
            sizes.pop()
            if not sizes:
                del self._uses[block]


@contextmanager
def kept_values(model: torch.nn.Module) -> Iterator[Counter]:
    """Count what autograd keeps for backward, without parameters."""
    counter = Counter(model)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: Kept(tensor, counter), lambda kept: kept.tensor):
        yield counter


@pytest.mark.real
@pytest.mark.parametrize(("family", "bf16"), [(FAMILIES[0], False), *((family, True) for family in FAMILIES)])
def test_a_rank_has_the_bytes_of_its_state(
    family: str, bf16: bool, tmp_path: Path, trainer: Callable[..., Any]
) -> None:
    make_model(tmp_path, family, tied=family == "qwen3")
    counted = rank_memory(read_architecture(tmp_path), Layout(), 1, bf16=bf16, sharded=False)
    with trainer(tmp_path, bf16=bf16) as rank:
        rank.train(one_sample(16))
        trained = rank.trainee
        weights = sum(parameter.nbytes for parameter in trained.model.parameters())
        gradients = sum(parameter.main_grad.nbytes for parameter in trained.model.parameters())
        optimizers = [optimizer.optimizer for optimizer in trained.optimizer.chained_optimizers]
        states = [state for optimizer in optimizers for state in optimizer.state.values()]
        moments = sum(value.nbytes for state in states for name, value in state.items() if name.startswith("exp_avg"))
        stepped = [tensor for optimizer in optimizers for group in optimizer.param_groups for tensor in group["params"]]
        masters = sum(tensor.nbytes for tensor in stepped) if bf16 else 0
    assert (weights, gradients, moments + masters) == (counted.weights, counted.gradients, counted.optimizer)


def most_kept(folder: Path, layers: int, recompute: dict[str, Any], trainer: Callable[..., Any]) -> tuple[int, float]:
    """Return the bytes that a step kept at most, and those that a plan counts."""
    make_model(folder, num_hidden_layers=layers, **SIZES)
    counted = activation_bytes(read_architecture(folder), Layout(), recompute, 0, TOKENS, 1.0)
    with recomputing() if recompute else nullcontext(), trainer(folder, bf16=True, megatron=recompute) as rank:
        assert rank.trainee.model.config.recompute_granularity == recompute.get("recompute_granularity")
        with kept_values(rank.trainee.model) as kept:
            rank.train(one_sample(TOKENS))
    return kept.most, counted


@pytest.mark.real
@pytest.mark.parametrize("recompute", [{}, FULL], ids=["all", "recompute"])
def test_backward_keeps_the_counted_values_of_more_layers(
    recompute: dict[str, Any], tmp_path: Path, trainer: Callable[..., Any]
) -> None:
    """The difference of two models is that of their layers: both have the same embedding, logits and loss."""
    few, many = (most_kept(tmp_path / str(layers), layers, recompute, trainer) for layers in (2, 6))
    kept, counted = many[0] - few[0], many[1] - few[1]
    print(few, many)
    assert 1.0 <= kept / counted < Assumptions().activation_factor + 0.05

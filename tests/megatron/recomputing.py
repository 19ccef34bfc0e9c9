"""`recomputing`: Megatron's recomputation of layers on the CPU, where the trainer leaves its settings out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch

FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


@contextmanager
def recomputing() -> Iterator[None]:
    """Let ranks that are made inside recompute. Megatron keeps the state of CUDA's random numbers, which has no use."""
    state, random = torch.zeros(1), "megatron.core.tensor_parallel.random"
    with (
        patch("actors.megatron.flags.MEGATRON_CUDA", frozenset()),
        patch(f"{random}._get_cuda_rng_state", lambda *_, **__: state),
        patch(f"{random}._set_cuda_rng_state", lambda *_, **__: None),
    ):
        yield

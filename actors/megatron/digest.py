"""Digests of torch tensors, on top of `storage.digests`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from storage.digests import TensorDigest, weights_digest
from storage.weights.store import TensorBytes

# safetensors' names of the dtypes.
DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def tensor_bytes(name: str, tensor: Tensor) -> TensorBytes:
    """A tensor as the weight store takes it; on the CPU without a copy."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return name, DTYPES[tensor.dtype], tuple(tensor.shape), flat.view(torch.uint8).numpy().data


def digest_tensor(tensor: Tensor) -> TensorDigest:
    """Digest of one tensor on any device."""
    _, dtype, shape, data = tensor_bytes("", tensor)
    return TensorDigest.of(dtype, shape, memoryview(data))


def digest_tensors(named: Iterable[tuple[str, Tensor]]) -> dict[str, TensorDigest]:
    """name -> digest, one tensor at a time."""
    return {name: digest_tensor(tensor) for name, tensor in named}


def optimizer_digest(optimizer: Any) -> str:
    """Digest of a Megatron optimizer's state on this rank: moments, step counts, and float32 main weights if any.

    Tensors are named by their place in the parameter groups, which is the same in every run of the same model.
    """
    return weights_digest(digest_tensors(_state_tensors(optimizer)))


def _state_tensors(optimizer: Any) -> Iterator[tuple[str, Tensor]]:
    for chained, part in enumerate(optimizer.chained_optimizers):
        inner = part.optimizer
        for group_index, group in enumerate(inner.param_groups):
            for index, parameter in enumerate(group["params"]):
                prefix = f"{chained}.{group_index}.{index}"
                if hasattr(part, "fp32_from_float16_groups") or hasattr(part, "shard_fp32_from_float16_groups"):
                    yield f"{prefix}.main", parameter
                for name, value in inner.state[parameter].items():
                    if isinstance(value, Tensor):
                        yield f"{prefix}.{name}", value

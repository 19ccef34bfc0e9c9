"""Replacements for CUDA that let Megatron-core run on a CPU (gloo). With CUDA, nothing in this file has an effect.

Megatron's model code asks for the current CUDA device: `install` answers this once per process. Its optimizers also
allocate on a literal "cuda" and compare type names such as "torch.cuda.FloatTensor": `stand_in` rewrites these torch
calls, but only in the calling thread and while it is active, because rewriting every torch call costs time.
"""

import functools
import importlib.util
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from slime_events.core.run.gloo_device import share_gloo_device

_inside = threading.local()


def on_cpu() -> bool:
    """Return whether this process trains on the CPU because torch finds no CUDA device."""
    return not torch.cuda.is_available()


def has_transformer_engine() -> bool:
    """Return whether layers are Transformer Engine's: on CUDA, if it is installed."""
    return not on_cpu() and importlib.util.find_spec("transformer_engine") is not None


@functools.cache
def install() -> None:
    """Make the CPU the current CUDA device of this process. Repeated calls have no effect."""
    if not on_cpu():
        return
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda *args, **kwargs: None
    share_gloo_device()
    from megatron.core.tensor_parallel.random import initialize_rng_tracker

    # The inference tracker's fork() is a null context; the training tracker needs a CUDA generator. Dropout is 0 here.
    initialize_rng_tracker(inference_rng_tracker=True)


@contextmanager
def stand_in() -> Iterator[None]:
    """Make "cuda" mean "cpu" in torch calls of this thread. Re-entrant, although torch's mode itself is not."""
    if not on_cpu() or getattr(_inside, "active", False):
        yield
        return
    install()
    _inside.active = True
    try:
        with _CudaIsCpu():
            yield
    finally:
        _inside.active = False


class _CudaIsCpu(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs = {**kwargs, "device": "cpu"}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}  # pinned memory needs a device to copy it to
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        return func(*args, **kwargs)

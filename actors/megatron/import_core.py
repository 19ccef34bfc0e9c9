"""Imports Megatron-core. To be imported before anything else does: it leaves out W&B, and on a CPU torch's compiler.

Megatron wraps some functions by `torch.compile` while it is imported, and the wrapping alone imports all of the
compiler: a third of the seconds in which a trainer's process starts. On a CPU none of them is run compiled.

It imports W&B for loggers that no run of ours has: a fifth of what is left. W&B makes temporary folders as it is
imported, which stay in /tmp where a trainer's process is ended by a signal, as Ray does.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

LEFT_OUT = "wandb"


def _as_it_is(function: Any = None, **_: Any) -> Any:
    return _as_it_is if function is None else function


@contextlib.contextmanager
def _left_out() -> Iterator[None]:
    """Meanwhile W&B is not installed, unless a user's function has imported it already."""
    if LEFT_OUT in sys.modules:
        yield
        return
    sys.modules[LEFT_OUT] = None  # type: ignore[assignment]  # what Python takes for a module that is not there
    try:
        yield
    finally:
        del sys.modules[LEFT_OUT]


@contextlib.contextmanager
def _not_compiled() -> Iterator[None]:
    compile_, torch.compile = torch.compile, _as_it_is  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = compile_


with _left_out(), contextlib.nullcontext() if torch.cuda.is_available() else _not_compiled():
    import megatron.core  # noqa: F401

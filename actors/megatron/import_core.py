"""Imports Megatron-core without W&B and, on a CPU, without torch's compiler. Import this before any other module does.

While it is imported, Megatron wraps some functions in `torch.compile`. The wrapping alone imports the whole compiler,
which is a third of the start time of a trainer's process. On a CPU none of these functions runs compiled.

Megatron also imports W&B, for loggers that no run here uses: a fifth of the remaining time. On import, W&B makes
temporary folders, which stay in /tmp if a signal ends the process, as Ray's does.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

LEFT_OUT = "wandb"


def _identity(function: Any = None, **_: object) -> Any:
    return _identity if function is None else function


@contextlib.contextmanager
def _left_out() -> Iterator[None]:
    """Hide W&B from imports, unless a user's function has already imported it."""
    if LEFT_OUT in sys.modules:
        yield
        return
    sys.modules[LEFT_OUT] = None  # type: ignore[assignment]  # Python raises ImportError for a None module
    try:
        yield
    finally:
        del sys.modules[LEFT_OUT]


@contextlib.contextmanager
def _not_compiled() -> Iterator[None]:
    compile_, torch.compile = torch.compile, _identity  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = compile_


with _left_out(), contextlib.nullcontext() if torch.cuda.is_available() else _not_compiled():
    import megatron.core  # noqa: F401

"""Imports Megatron-core. To be imported before anything else does: on a CPU it leaves torch's compiler out.

Megatron wraps some functions by `torch.compile` while it is imported, and the wrapping alone imports all of the
compiler: a third of the seconds in which a trainer's process starts. On a CPU none of them is run compiled.
"""

from typing import Any

import torch


def _as_it_is(function: Any = None, **_: Any) -> Any:
    return _as_it_is if function is None else function


if not torch.cuda.is_available():
    _compile, torch.compile = torch.compile, _as_it_is  # type: ignore[assignment]
    try:
        import megatron.core  # noqa: F401
    finally:
        torch.compile = _compile

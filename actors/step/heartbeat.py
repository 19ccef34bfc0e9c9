"""`beat`: count forward passes, optimizer steps, and tensors loaded or hashed in this process, to detect a hang.

A rank that waits for another rank in a collective call does not beat either, so it is enough to watch rank 0.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_beats = itertools.count(1)
_newest = 0


def beat() -> None:
    """Count a finished piece of work."""
    global _newest
    _newest = next(_beats)


def beats() -> int:
    """Return the number of beats in this process."""
    return _newest


def beating(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and count each."""
    for item in items:
        beat()
        yield item

"""`beat`: counts the forward passes, the optimizer steps and the tensors loaded or hashed in this process. So a hang
can be told from work.

A rank that waits for another one in a collective call does not beat either: rank 0 is watched for all of them.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_beats = itertools.count(1)
_newest = 0


def beat() -> None:
    """Count a piece of work that was done."""
    global _newest
    _newest = next(_beats)


def beats() -> int:
    """How many there were in this process."""
    return _newest


def beating(items: Iterable[T]) -> Iterator[T]:
    """The items, each counted."""
    for item in items:
        beat()
        yield item

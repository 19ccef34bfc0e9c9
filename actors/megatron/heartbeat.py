"""`beat`: each forward pass and each optimizer step of this process is counted, so that a hang can be told from work.

A rank that waits for another one in a collective call does not beat either: rank 0 is watched for all of them.
"""

import itertools

_beats = itertools.count(1)
_newest = 0


def beat() -> None:
    """Count a piece of work that was done."""
    global _newest
    _newest = next(_beats)


def beats() -> int:
    """How many there were in this process."""
    return _newest

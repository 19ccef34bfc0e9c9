"""`Retrained`: a step that was trained again."""

from __future__ import annotations

import msgspec

from slime_events.analysis.retrain.difference import Difference
from slime_events.analysis.retrain.distance import Distance


class Retrained(msgspec.Struct, frozen=True):
    """seconds: of training it, with taking the weights out. differences: what is otherwise than in the log; nothing
    where it came out bit for bit. distance: from the recorded weights, where digests cannot be the same.
    """

    step: int
    version: int
    tokens: int
    seconds: float
    differences: tuple[Difference, ...] = ()
    distance: Distance | None = None

"""`LongTail`: a scripted engine whose responses have log-normal lengths, p99 ten times the median, as reasoning has."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import replace
from statistics import NormalDist

import msgspec

from serve_apps.engine.engine import Delta, GenerateRequest
from tests.scripted_engine import Script, ScriptedEngine, mixed

SPREAD = 10.0
"""p99 / median."""
SIGMA = math.log(SPREAD) / NormalDist().inv_cdf(0.99)


def length_of(seed: int, median: float, most: int) -> int:
    """The length that a request's seed stands for, in tokens: the same on every engine and at every attempt."""
    drawn = median * math.exp(SIGMA * NormalDist().inv_cdf(min(max(mixed(seed, 7), 1e-9), 1 - 1e-9)))
    return min(max(1, round(drawn)), most)


class LongTail(ScriptedEngine):
    """Ends each response at its own length, cut at what the request allows."""

    def __init__(self, script: Script, median: float) -> None:
        super().__init__(script)
        self._median = median

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`."""
        length = length_of(request.seed, self._median, request.sampling.max_new_tokens)
        sampling = msgspec.structs.replace(request.sampling, max_new_tokens=length)
        async for delta in super().generate(replace(request, sampling=sampling)):
            yield delta

"""`LongTail`: a scripted engine with log-normal response lengths, p99 ten times the median, as in reasoning."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import replace
from statistics import NormalDist

import msgspec

from serve_apps.engines.engine import Delta, GenerateRequest
from tests.scripted_engine import Script, ScriptedEngine, mixed

SPREAD = 10.0
"""p99 / median."""
SIGMA = math.log(SPREAD) / NormalDist().inv_cdf(0.99)


def length_of(seed: int, median: float, most: int) -> int:
    """Return the response length for a request's seed, in tokens: the same on every engine and in every attempt."""
    drawn = median * math.exp(SIGMA * NormalDist().inv_cdf(min(max(mixed(seed, 7), 1e-9), 1 - 1e-9)))
    return min(max(1, round(drawn)), most)


class LongTail(ScriptedEngine):
    """Ends each response at the length for its seed, or at the request's limit."""

    def __init__(self, script: Script, median: float) -> None:
        super().__init__(script)
        self._median = median

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`."""
        length = length_of(request.seed, self._median, request.sampling.max_new_tokens)
        sampling = msgspec.structs.replace(request.sampling, max_new_tokens=length)
        async for delta in super().generate(replace(request, sampling=sampling)):
            yield delta

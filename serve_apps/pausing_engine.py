"""`PausingEngine`: an engine as one rollout sees it, pausing while it runs weights that may not make the rollout."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np

from schemas.rollouts import StopReason
from serve_apps.engine.engine import Delta, Engine, GenerateRequest, Tokens
from serve_apps.engine_weights import EngineWeights
from serve_apps.version_choice import Claim


class PausingEngine:
    """The deltas of one generation, whatever weights are loaded in the midst of it (a `Generator`)."""

    def __init__(self, engine: Engine, weights: EngineWeights, claim: Claim) -> None:
        self._engine, self._weights, self._claim = engine, weights, claim

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`. Where it is paused, it goes on from the tokens that there are. DeadlineExceeded."""
        made: list[Tokens] = [request.resume]
        paused = True
        while paused:
            paused = False
            async with self._weights.generating(request.rid, self._claim) as rid:
                deltas = self._engine.generate(replace(request, rid=rid, resume=np.concatenate(made)))
                async with contextlib.aclosing(deltas):  # type: ignore[type-var]
                    async for delta in deltas:
                        made.append(delta.tokens)
                        self._note(delta)
                        ended = delta.finish is not None and delta.finish is not StopReason.ABORT
                        paused = not ended and self._weights.pauses(self._claim)
                        yield replace(delta, finish=None, text=None) if paused else delta
                        if paused:
                            break

    def _note(self, delta: Delta) -> None:
        """What a newer version has begun no older one goes on with."""
        for span in delta.spans:
            self._claim.oldest = max(self._claim.oldest, span.version)

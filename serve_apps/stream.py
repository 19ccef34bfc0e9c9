"""`stream`: one generation, from what is there of it to its end, chunk by chunk into the log."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from schemas.errors import EngineError
from schemas.rollouts import RolloutProgressed, StopReason
from serve_apps.engine.engine import Delta, GenerateRequest, Generator
from serve_apps.rollout import ChunkRule, Rollout


async def stream(
    engine: Generator,
    request: GenerateRequest,
    rollout: Rollout,
    rule: ChunkRule,
    *,
    rests: Callable[[], bool],
    say: Callable[[RolloutProgressed], Awaitable[int]],
) -> Delta | None:
    """The last delta, its tokens added to `rollout`; None where the rollout is to rest, with all that it has said.

    rests: asked after every delta. say: appends a chunk, and gives its position. Raises what `say` raises, and
    EngineError where the engine ends it in another way.
    """
    deltas = engine.generate(request)
    async with contextlib.aclosing(deltas):  # type: ignore[type-var]  # so that a refused append ends it at once
        async for delta in deltas:
            rollout.add(delta.tokens, delta.log_probs, delta.spans)
            aborted, resting = delta.finish is StopReason.ABORT, rests()
            if delta.finish is not None and not aborted:
                return delta
            if rollout.due(rule) or ((aborted or resting) and rollout.new_length):
                rollout.said(await say(rollout.chunk()))
            if resting:
                return None
            if aborted:
                raise EngineError(f"the engine aborted {request.rid} after {rollout.length} tokens")
    raise EngineError(f"the engine ended {request.rid} without a finish reason")

"""Replays a recorded rollout on an engine, span by span, each under its own weight version."""

import contextlib
from collections.abc import Callable

import numpy as np

from schemas.rollouts import StopReason, WeightSpan
from serve_apps.engine.engine import Engine, GenerateRequest
from slime_events.analysis.replay_rollout.compare import SpanTokens
from slime_events.analysis.replay_rollout.recorded import RecordedRollout

FolderOf = Callable[[int], str]
"""The folder of a weight version."""


async def replay(
    engine: Engine, rollout: RecordedRollout, folder_of: FolderOf, *, force: bool = False
) -> list[SpanTokens]:
    """What the engine gives for each span, continuing from the recorded tokens before it.

    force: score the recorded tokens instead of sampling. Raises EngineError, and what `folder_of` raises.
    """
    spans = []
    for span in rollout.spans:
        if engine.version != span.version:
            await engine.update_weights(folder_of(span.version), span.version)
        request = GenerateRequest(
            rid=f"replay-{rollout.sample}-{span.start}",
            prompt=rollout.prompt,
            sampling=rollout.sampling,
            seed=rollout.seed,
            resume=rollout.tokens[: span.start],
        )
        if force:
            tokens = rollout.tokens[span.start : span.end]
            spans.append(SpanTokens(span=span, tokens=tokens, log_probs=await engine.score(request, tokens)))
        else:
            spans.append(await _generated(engine, rollout, span, request))
    return spans


async def _generated(
    engine: Engine, rollout: RecordedRollout, span: WeightSpan, request: GenerateRequest
) -> SpanTokens:
    """To the span's end; one token further where the rollout ended there, to see that the engine ends there too."""
    wanted = span.end - span.start + (1 if rollout.ends(span) else 0)
    tokens, log_probs = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
    stop: StopReason | None = None
    deltas = engine.generate(request)
    async with contextlib.aclosing(deltas):  # type: ignore[type-var]  # closed early, it ends the response
        async for delta in deltas:
            tokens.append(delta.tokens)
            log_probs.append(delta.log_probs)
            stop = delta.finish
            if sum(map(len, tokens)) >= wanted:
                break
    return SpanTokens(
        span=span,
        tokens=np.concatenate(tokens)[:wanted],
        log_probs=np.concatenate(log_probs)[:wanted],
        stop=stop,
    )

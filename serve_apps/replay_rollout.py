"""Replays a recorded rollout on an engine, span by span, each under its own weight version."""

import contextlib
from collections.abc import Callable

import numpy as np

from serve_apps.engine.engine import Delta, Engine, GenerateRequest
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
            continue
        # To the span's end; one token further where the rollout ended there, to see that the engine ends there too.
        wanted, made = span.end - span.start + rollout.ends(span), list[Delta]()
        deltas = engine.generate(request)
        async with contextlib.aclosing(deltas):  # type: ignore[type-var]  # closed early, it ends the response
            async for delta in deltas:
                made.append(delta)
                if sum(len(delta.tokens) for delta in made) >= wanted:
                    break
        tokens = np.concatenate([delta.tokens for delta in made])[:wanted]
        log_probs = np.concatenate([delta.log_probs for delta in made])[:wanted]
        spans.append(SpanTokens(span=span, tokens=tokens, log_probs=log_probs, stop=made[-1].finish))
    return spans

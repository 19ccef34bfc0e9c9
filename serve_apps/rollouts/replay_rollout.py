"""`replay`: generates a recorded rollout again on an engine, span by span, each with its own weight version."""

import contextlib
from collections.abc import Callable

import numpy as np

from serve_apps.engines.engine import Delta, Engine, GenerateRequest
from slime_events.analysis.replay_rollout.compare import SpanTokens
from slime_events.analysis.replay_rollout.recorded import RecordedRollout

FolderOf = Callable[[int], str]
"""Weight version to its folder."""


async def replay(
    engine: Engine, rollout: RecordedRollout, folder_of: FolderOf, *, force: bool = False
) -> list[SpanTokens]:
    """Return the engine's tokens for each span, continued from the recorded tokens before it.

    With `force`, score the recorded tokens instead of sampling. Raises EngineError, and the errors of `folder_of`.
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
        # To the span's end. If the rollout ended there, one token more, to check that the engine ends there too.
        target, received = span.end - span.start + rollout.ends(span), list[Delta]()
        deltas = engine.generate(request)
        async with contextlib.aclosing(deltas):  # type: ignore[type-var]  # closing it early ends the response
            async for delta in deltas:
                received.append(delta)
                if sum(len(delta.tokens) for delta in received) >= target:
                    break
        tokens = np.concatenate([delta.tokens for delta in received])[:target]
        log_probs = np.concatenate([delta.log_probs for delta in received])[:target]
        spans.append(SpanTokens(span=span, tokens=tokens, log_probs=log_probs, stop=received[-1].finish))
    return spans

"""`score`: log-probs of given tokens, by requests to SGLang."""

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

import numpy as np

from serve_apps.engines.engine import GenerateRequest, LogProbs, Tokens

UNSCALED = (0.0, 1.0)
"""Temperatures with log-probs of the logits themselves; 0 is greedy."""
SCORED_TOKENS = 64
"""Tokens that are scored concurrently, if each needs its own request."""


class Ask(Protocol):
    """Sends a request that generates one token, and returns the `meta_info` of its answer."""

    def __call__(self, part: str, /, **fields: Any) -> Awaitable[dict[str, Any]]:
        """Send `fields` of SGLang's /generate. part: end of the request's id."""


async def score(request: GenerateRequest, tokens: Tokens, ask: Ask) -> LogProbs:
    """Return log-probs of `tokens`: see `Engine.score`. Raises ValueError for log-probs of other tokens.

    SGLang scores tokens in one pass, but always at temperature 1. For any other temperature there is one request per
    token: it generates after the tokens before, and returns the log-prob of the token to score.
    """
    before, scored = request.prompt.tolist() + request.resume.tolist(), tokens.tolist()
    temperature = request.sampling.temperature
    parameters = {"max_new_tokens": 1, "temperature": temperature, "sampling_seed": 0}
    fields = {"sampling_params": parameters, "return_logprob": True}
    if not scored:
        return np.empty(0, np.float32)
    if temperature in UNSCALED:
        meta = await ask("", input_ids=before + scored, logprob_start_len=max(0, len(before) - 1), **fields)
        entries = meta["input_token_logprobs"][-len(scored) :]
        if [entry[1] for entry in entries] != scored:
            count = len(meta["input_token_logprobs"])
            raise ValueError(f"SGLang returned {count} log-probs, which do not belong to the {len(scored)} tokens")
        return np.array([float(entry[0]) for entry in entries], np.float32)
    room = asyncio.Semaphore(SCORED_TOKENS)

    async def score_at(index: int) -> float:
        ids, chosen = before + scored[:index], [scored[index]]
        async with room:
            meta = await ask(f"-{index:08d}", input_ids=ids, token_ids_logprob=chosen, **fields)
        return float(meta["output_token_ids_logprobs"][0][0][0])

    return np.array(await asyncio.gather(*map(score_at, range(len(scored)))), np.float32)

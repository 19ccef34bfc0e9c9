"""`Scoring`: the log-probs that SGLang gives tokens which it is told, in the engine's own process.

SGLang scores what it is given in one pass, but as if the temperature were 1. At any other it is asked for one token
after the other, each with what came before it, for the log-prob of the token that came next.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from serve_apps.engine import messages

AS_GIVEN = (0.0, 1.0)
"""Temperatures at which log-probs are of the logits themselves; 0 is greedy."""
AT_ONCE = 64


class Scoring:
    """One request to SGLang's tokenizer manager, or as many as there are tokens."""

    def __init__(self, manager: Any, frame: messages.Score) -> None:
        self._manager, self._frame = manager, frame
        self._before: list[int] = np.frombuffer(frame.prompt + frame.resume, dtype="<i4").tolist()
        self._tokens: list[int] = np.frombuffer(frame.tokens, dtype="<i4").tolist()
        self._room = asyncio.Semaphore(AT_ONCE)

    async def log_probs(self) -> list[float]:
        """Of each token, natural. Raises ValueError, SGLang's word for what it cannot take."""
        if not self._tokens:
            return []
        if self._frame.temperature in AS_GIVEN:
            return await self._in_one_pass()
        return await asyncio.gather(*map(self._of_one, range(len(self._tokens))))

    async def _in_one_pass(self) -> list[float]:
        count = len(self._tokens)
        meta = await self._ask("", self._before + self._tokens, logprob_start_len=max(0, len(self._before) - 1))
        scored = meta["input_token_logprobs"][-count:]
        if [entry[1] for entry in scored] != self._tokens:
            raise ValueError(f"{len(meta['input_token_logprobs'])} log-probs came for {count} tokens, not of them")
        return [float(entry[0]) for entry in scored]

    async def _of_one(self, place: int) -> float:
        token = self._tokens[place]
        async with self._room:
            meta = await self._ask(f"-{place:08d}", self._before + self._tokens[:place], token_ids_logprob=[token])
        return float(meta["output_token_ids_logprobs"][0][0][0])

    async def _ask(self, part: str, tokens: list[int], **what: Any) -> dict[str, Any]:
        from sglang.srt.managers.io_struct import GenerateReqInput

        parameters = {"max_new_tokens": 1, "temperature": self._frame.temperature, "sampling_seed": 0}
        request = GenerateReqInput(
            input_ids=tokens, sampling_params=parameters, return_logprob=True, rid=self._frame.id + part, **what
        )
        async for output in self._manager.generate_request(request, None):
            meta: dict[str, Any] = output["meta_info"]
        return meta

"""The `Engine` protocol: a rollout engine as the rest of the system sees it, its requests and its deltas."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.rollouts import Sampling, StopReason, WeightSpan

Tokens = npt.NDArray[np.int32]
LogProbs = npt.NDArray[np.float32]


FIXED_SAMPLING = {"no_stop_trim": True, "spaces_between_special_tokens": False}
"""SGLang's sampling parameters that are the same in every request."""


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """A sampling under SGLang's names, which are slime's too."""
    values = msgspec.structs.asdict(sampling)
    if not sampling.min_new_tokens:
        del values["min_new_tokens"]
    lists = {"stop": list(sampling.stop), "stop_token_ids": list(sampling.stop_token_ids)}
    more = values.pop("more")
    return {**values, **lists, **more, **FIXED_SAMPLING}


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One response to one prompt, from its start or resumed.

    prompt, resume: int32 token ids; `resume` is the existing part of the response. sampling: of the whole response,
    so `max_new_tokens` counts the resumed tokens too. seed: any 63-bit number; on a deterministic engine it
    fixes, with the weights, every token by its absolute position, resumed or not. payload: other fields of SGLang's
    /generate. keeps: what top-p and top-k leave of the vocabulary is wanted.
    """

    rid: str
    prompt: Tokens
    sampling: Sampling
    seed: int
    resume: Tokens = field(default_factory=lambda: np.empty(0, np.int32))
    payload: dict[str, Any] = field(default_factory=dict)
    keeps: bool = False

    @property
    def left(self) -> int:
        """Tokens that may still be generated."""
        return self.sampling.max_new_tokens - len(self.resume)


_NO_IDS: Tokens = np.empty(0, np.int32)
_NO_LOG_PROBS: LogProbs = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of one response, in order.

    tokens: int32 [n]; log_probs: float32 [n], natural, of logits / temperature. spans: weight versions over exactly
    these tokens, in response positions (resumed tokens count). finish: set in the last delta only; then
    `text` is the whole response (resumed part included), decoded with special tokens kept or not as the sampling says.
    meta: the engine's `meta_info` in the last delta, where the request has a payload or ended by an unknown reason.
    kept: where it was asked for, the ids that each token was drawn from, end to end and rising for each; kept_counts:
    how many, int32 [n]; kept_log_probs: of the distribution over these, float32 [n].
    """

    tokens: Tokens
    log_probs: LogProbs
    spans: tuple[WeightSpan, ...]
    finish: StopReason | None = None
    text: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    kept: Tokens = field(default_factory=lambda: _NO_IDS)
    kept_counts: Tokens = field(default_factory=lambda: _NO_IDS)
    kept_log_probs: LogProbs = field(default_factory=lambda: _NO_LOG_PROBS)


def narrows(sampling: Sampling) -> bool:
    """Whether top-p or top-k leaves a part of the vocabulary out. Greedy decoding (temperature 0) draws nothing."""
    return sampling.temperature > 0 and (sampling.top_p < 1.0 or sampling.top_k > 0)


class Engine(Protocol):
    """A rollout engine, driven from one event loop. Failures are `EngineError`; waits end in `DeadlineExceeded`."""

    version: int
    """Weight version of new tokens."""
    tokens_generated: int
    """New tokens since the start."""
    was_killed: bool
    """Whether somebody outside has ended its processes, by a signal that cannot be a fault of theirs."""

    async def start(self, deadline_s: float) -> None:
        """Ready to generate when it returns; a failure leaves no process behind."""

    async def stop(self) -> None:
        """Leaves no process behind; running responses end in `EngineError`. Safe to call twice."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """Deltas up to the one with `finish`. Closing the iterator early aborts the response."""

    async def score(self, request: GenerateRequest, tokens: Tokens) -> LogProbs:
        """Log-probs of `tokens` after the request's prompt and resumed part.

        float32 [tokens], natural, of logits / temperature. The rest of the request is ignored.
        """

    async def update_weights(self, folder: str, version: int) -> float:
        """Load the HF safetensors in `folder`; returns seconds. Running responses continue under the new weights."""

    async def abort(self, rid: str) -> None:
        """End a response: its last delta has StopReason.ABORT. Unknown ids are ignored."""

    async def healthy(self) -> bool:
        """Whether the engine and its scheduler are alive and answer."""

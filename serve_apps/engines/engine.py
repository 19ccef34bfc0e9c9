"""The `Engine` protocol: a rollout engine as the rest of the system sees it, its requests and its deltas."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.doc import doc
from schemas.rollouts import RoutedExperts, Sampling, StopReason, WeightSpan
from schemas.transfers import TransferBegun

Tokens = npt.NDArray[np.int32]
LogProbs = npt.NDArray[np.float32]


FIXED_SAMPLING = {"no_stop_trim": True, "spaces_between_special_tokens": False}
"""SGLang's sampling parameters with the same value in every request."""


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """Return a sampling under SGLang's names, which are slime's too."""
    values = msgspec.structs.asdict(sampling)
    if not sampling.min_new_tokens:
        del values["min_new_tokens"]
    lists = {"stop": list(sampling.stop), "stop_token_ids": list(sampling.stop_token_ids)}
    more = values.pop("more")
    return {**values, **lists, **more, **FIXED_SAMPLING}


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One response to one prompt, from its start or resumed."""

    rid: str
    prompt: Annotated[Tokens, doc("int32 token ids.")]
    sampling: Annotated[Sampling, doc("Of the whole response: `max_new_tokens` includes the resumed tokens.")]
    seed: Annotated[
        int,
        doc(
            "Any 63-bit number. On a deterministic engine the seed, the weights and the absolute position fix every "
            "token, resumed or not."
        ),
    ]
    resume: Annotated[Tokens, doc("int32 token ids: the existing part of the response.")] = field(
        default_factory=lambda: np.empty(0, np.int32)
    )
    payload: Annotated[dict[str, Any], doc("Additional fields of SGLang's /generate.")] = field(default_factory=dict)
    keeps: Annotated[bool, doc("Whether to return the vocabulary that top-p and top-k keep.")] = False
    routes: Annotated[bool, doc("Whether to return the experts of each token, if the engine records them.")] = False

    @property
    def left(self) -> int:
        """Tokens that may still be generated."""
        return self.sampling.max_new_tokens - len(self.resume)


_NO_IDS: Tokens = np.empty(0, np.int32)
_NO_LOG_PROBS: LogProbs = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of one response, in order."""

    tokens: Annotated[Tokens, doc("int32 [n].")]
    log_probs: Annotated[LogProbs, doc("float32 [n], nats, of logits / temperature.")]
    spans: Annotated[
        tuple[WeightSpan, ...],
        doc("Weight versions over exactly these tokens, in response positions (resumed tokens count)."),
    ]
    finish: Annotated[StopReason | None, doc("Set only in the last delta.")] = None
    text: Annotated[
        str | None,
        doc(
            "In the last delta the whole response with its resumed part. The sampling says whether it has special "
            "tokens."
        ),
    ] = None
    meta: Annotated[
        dict[str, Any],
        doc("The engine's `meta_info` in the last delta, if the request has a payload or ended for an unknown reason."),
    ] = field(default_factory=dict)
    kept: Annotated[
        Tokens,
        doc("If requested, the ids that each token was drawn from: int32, concatenated, ascending for each token."),
    ] = field(default_factory=lambda: _NO_IDS)
    kept_counts: Annotated[Tokens, doc("Number of kept ids for each token, int32 [n].")] = field(
        default_factory=lambda: _NO_IDS
    )
    kept_log_probs: Annotated[LogProbs, doc("Log-prob of each token among its kept ids, float32 [n].")] = field(
        default_factory=lambda: _NO_LOG_PROBS
    )
    experts: Annotated[
        RoutedExperts | None, doc("If requested, in the last delta: experts of the tokens of prompt and response.")
    ] = None


def narrows(sampling: Sampling) -> bool:
    """Return whether top-p or top-k excludes a part of the vocabulary. At temperature 0 nothing is drawn."""
    return sampling.temperature > 0 and (sampling.top_p < 1.0 or sampling.top_k > 0)


class Engine(Protocol):
    """A rollout engine, driven from one event loop. Failures are `EngineError`; waits end in `DeadlineExceeded`."""

    version: int
    """Weight version of new tokens."""
    tokens_generated: int
    """New tokens since the start."""
    was_killed: bool
    """Whether a signal from outside ended its processes, one that cannot be their own fault."""

    async def start(self, deadline_s: float) -> None:
        """Start. When this returns, the engine can generate; a failure leaves no process behind."""

    async def stop(self) -> None:
        """End all processes. Running responses end in `EngineError`. Safe to call twice."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """Yield deltas up to the one with `finish`. Closing the iterator early aborts the response."""

    async def score(self, request: GenerateRequest, tokens: Tokens) -> LogProbs:
        """Return the log-probs of `tokens` after the request's prompt and resumed part.

        They are float32 [tokens], nats, of logits / temperature. The rest of the request is ignored.
        """

    async def update_weights(self, folder: str, version: int) -> float:
        """Load the HF safetensors in `folder`, and return the seconds. Running responses continue with them."""

    async def abort(self, rid: str) -> None:
        """End a response: its last delta has StopReason.ABORT. Unknown ids are ignored."""

    async def rest(self) -> None:
        """Give the memory of the device back, weights included. No response is running. A second call does nothing."""

    async def wake(self) -> None:
        """Use the device again. The engine has no weights until the next update. A second call does nothing."""

    async def healthy(self) -> bool:
        """Return whether the engine and its scheduler are alive and answer."""


@runtime_checkable
class Receiver(Protocol):
    """An engine that can receive weights as a member of a group, besides loading files."""

    group_ranks: int
    """Its processes that receive weights; 0 if it cannot with its settings."""
    group_backend: str
    """torch's backend for its device."""

    async def receive_weights(self, group: TransferBegun, rank: int, digest: str) -> str | None:
        """Receive a version, and return None, or why it did not come whole. Then it generates only after
        `update_weights`. rank: of its first process. digest: the published one.
        """

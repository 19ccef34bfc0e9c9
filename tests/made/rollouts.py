"""Events of rollouts. The group and the index of a sample are those of its id, `<group>-s<index>`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from schemas.arrays import Array, pack_log_probs, pack_tokens
from schemas.ids import group_of, order_in_group
from schemas.rollouts import (
    FailureKind,
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
    RolloutSuspended,
    Sampling,
    StopReason,
    SuspendReason,
    WeightSpan,
)
from schemas.turns import TurnRecorded, TurnRole

Numbers = Array | Sequence[int] | Sequence[float] | npt.NDArray[Any]


def group(sample: str) -> str:
    """Return the group of a sample; "g" for an id without one."""
    return group_of(sample) or "g"


def tokens_of(values: Numbers) -> Array:
    return values if isinstance(values, Array) else pack_tokens(values)  # type: ignore[arg-type]


def log_probs_of(values: Numbers) -> Array:
    return values if isinstance(values, Array) else pack_log_probs(values)


def requested(sample: str = "g-s0", prompt: Numbers = (1,), max_new_tokens: int = 8, **fields: Any) -> RolloutRequested:
    index = order_in_group(sample)[0] if group_of(sample) else 0
    plain = {"group": group(sample), "index": index, "sampling": Sampling(max_new_tokens=max_new_tokens), "seed": 1}
    return RolloutRequested(sample=sample, prompt=tokens_of(prompt), **(plain | fields))


def progressed(
    sample: str, tokens: Numbers, log_probs: Numbers | None = None, start: int = 0, **fields: Any
) -> RolloutProgressed:
    """Return a chunk of a rollout. By default its log-probs are -0.5, and weight version 0 generated it."""
    chunk = tokens_of(tokens)
    plain = {"attempt": 0, "spans": (WeightSpan(start, start + chunk.n, 0),), "engine": "e"}
    chances = log_probs_of([-0.5] * chunk.n if log_probs is None else log_probs)
    return RolloutProgressed(sample=sample, start=start, tokens=chunk, log_probs=chances, **(plain | fields))


def completed(
    sample: str = "g-s0", tokens: Numbers | None = None, log_probs: Numbers | None = None, **fields: Any
) -> RolloutCompleted:
    """Return the end of a rollout, with the last tokens of the response.

    Without `tokens` the event holds none, and the response is `length` tokens long, by default 1.
    """
    plain: dict[str, Any] = {
        "group": group(sample),
        "attempt": 0,
        "start": 0,
        "length": 1,
        "prompt_length": 1,
        "stop": StopReason.STOP,
        "text": "",
        "spans": (),
        "digest": "",
        "engine": "e",
    }
    if tokens is not None:
        plain["tokens"] = tokens_of(tokens)
        plain["length"] = fields.get("start", 0) + plain["tokens"].n
    if log_probs is not None:
        plain["log_probs"] = log_probs_of(log_probs)
    return RolloutCompleted(sample=sample, **(plain | fields))


def failed(sample: str, kind: FailureKind = FailureKind.ENGINE, **fields: Any) -> RolloutFailed:
    plain = {"group": group(sample), "attempt": 0, "message": "gone", "engine": "e"}
    return RolloutFailed(sample=sample, kind=kind, **(plain | fields))


def suspended(sample: str, length: int, **fields: Any) -> RolloutSuspended:
    plain = {"attempt": 0, "reason": SuspendReason.STEP_BOUNDARY, "engine": "e"}
    return RolloutSuspended(sample=sample, length=length, **(plain | fields))


def turn(sample: str, index: int = 0, **fields: Any) -> TurnRecorded:
    """Return a turn that has ended, by default an assistant's."""
    plain = {"role": TurnRole.ASSISTANT, "asked": "", "engine": "e"}
    return TurnRecorded(sample=sample, index=index, **(plain | fields))

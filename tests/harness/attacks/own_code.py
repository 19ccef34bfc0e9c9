"""A user's generate and reward function that do what a row's metadata says: raise, or return what is none."""

from __future__ import annotations

import asyncio
from typing import Any

SURROGATE = "tool said \ud83d"
LARGE = 6_000_000


class Odd(Exception):
    """An exception that cannot be converted to text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Strange:
    """A value that cannot be converted to anything."""

    def __repr__(self) -> str:
        raise ValueError("no text")


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


RAISED = {
    "raises": lambda: RuntimeError("plain"),
    "raises half a character": lambda: RuntimeError(SURROGATE),
    "raises escapes": lambda: RuntimeError("\x1b]0;title\x07\x1b[2J\x00"),
    "raises a large text": lambda: RuntimeError("y" * LARGE),
    "raises without a text": Odd,
    "raises KeyError of half a character": lambda: KeyError(SURROGATE),
    "raises StopIteration": StopIteration,
    "raises CancelledError": asyncio.CancelledError,
    "raises MemoryError": MemoryError,
    "raises RecursionError": RecursionError,
    "raises UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, SURROGATE),
}
SET: dict[str, dict[str, Any]] = {
    "response None": {"response": None},
    "response of bytes": {"response": b"a"},
    "response a number": {"response": 5},
    "response half a character": {"response": SURROGATE},
    "response of 6 MB": {"response": "y" * LARGE},
    "length a fraction": {"response_length": 1.5},
    "length negative": {"response_length": -3},
    "length too large": {"response_length": 10**9},
    "mask a fraction": {"loss_mask": [0.5]},
    "mask None in it": {"loss_mask": [None]},
    "log-probs NaN": {"rollout_log_probs": [float("nan")]},
    "log-probs of texts": {"rollout_log_probs": ["a"]},
    "metadata None": {"metadata": None},
    "metadata of 6 MB": {"metadata": {"log": "y" * LARGE}},
    "metadata half a character": {"metadata": {SURROGATE: SURROGATE}},
    "metadata nested": {"metadata": {"a": _nested(2000)}},
    "metadata an object": {"metadata": {"a": Strange()}},
    "label an object": {"label": Strange()},
    "reward of a text": {"reward": "much"},
    "reward infinite": {"reward": float("inf")},
    "status of a text": {"status": "odd"},
    "session a number": {"session_id": 5},
    "rollout_id a text": {"rollout_id": "x"},
    "weight_versions a number": {"weight_versions": 5},
    "tokens None": {"tokens": None},
    "tokens of texts": {"tokens": ["a"]},
}
TOKENS: dict[str, Any] = {
    "token 99999": 99999,
    "token 264": 264,
    "token negative": -1,
    "token 2**31-1": 2**31 - 1,
    "token 2**31": 2**31,
    "token 10**40": 10**40,
    "token a fraction": 1.5,
    "token None": None,
}
RETURNED: dict[str, Any] = {
    "returns None": None,
    "returns a text": "much",
    "returns a number": 5,
    "returns an empty list": [],
    "returns NaN": float("nan"),
    "returns infinity": float("inf"),
    "returns 10**400": 10**400,
    "returns 1e308": 1e308,
    "returns a list": [1.0, 2.0],
    "returns an object": Strange(),
}
DETAILS: dict[str, Any] = {
    "detail of 6 MB": {"log": "y" * LARGE},
    "detail half a character": {SURROGATE: SURROGATE},
    "detail escapes": {"\x1b[2J": "\x1b]0;t\x07"},
    "detail nested": {"a": _nested(2000)},
    "detail an object": {"a": Strange()},
    "detail of 1,000,000 numbers": {"a": list(range(1_000_000))},
    "detail of bytes": {"a": b"\xff" * 100},
    "detail with a large number": {"a": 10**400, "b": float("nan")},
    "detail with keys of numbers": {1: 2, None: 3},
}


def _does(sample: Any, who: str) -> str:
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    return str(metadata.get(who) or "")


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    """A made-up turn of two tokens, with what the row says done to it."""
    do = _does(sample, "generate")
    if do in RAISED:
        raise RAISED[do]()
    if do in RETURNED:
        return RETURNED[do]
    prompt = [49, 43, 49]
    sample.tokens, sample.response, sample.response_length = [*prompt, 50, 51], "23", 2
    sample.loss_mask, sample.rollout_log_probs = [1, 1], [-0.5, -0.5]
    sample.status = type(sample.status).COMPLETED
    if do.removeprefix("prompt ") in TOKENS:
        sample.tokens[0 if do.startswith("prompt") else -1] = TOKENS[do.removeprefix("prompt ")]
    for name, value in SET.get(do, {}).items():
        setattr(sample, name, value)
    return sample


def reward(args: Any, sample: Any, **kwargs: Any) -> Any:
    """Return a number that differs in a group, or do what the row says."""
    do = _does(sample, "reward")
    if do in RAISED:
        raise RAISED[do]()
    if do in RETURNED:
        return RETURNED[do]
    score = float((sample.index or 0) % 2)
    return {"score": score} | DETAILS.get(do, {})

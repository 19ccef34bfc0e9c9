"""Reads texts, samples and steps that cases describe in a few fixed words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from slime_events.plugins.sample import Sample, Status
from tests.harness.conformance.case import UnknownShape

_NUMBER = re.compile(r"-?\d*\.?\d+(?:e-?\d+)?")
_LENGTH = re.compile(r"\s*\([^()]*\)\s*$")
_STATUSES = {status.name: status for status in Status}


def text(words: str) -> str:
    """`'ab'*4999 + 'c' (9999 chars)` as Python reads it without its remark; any other text is itself."""
    try:
        tree = ast.parse(_LENGTH.sub("", words).strip(), mode="eval").body
        return _text(tree)
    except (SyntaxError, UnknownShape):
        return words


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for times, what in ((node.left, node.right), (node.right, node.left)):
            if isinstance(times, ast.Constant) and isinstance(times.value, int):
                return _text(what) * times.value
    raise UnknownShape(ast.unparse(node))


def numbers(words: str) -> list[float]:
    """All numbers in a text, such as `[-.1,-.2]`."""
    return [float(number) for number in _NUMBER.findall(words)]


def _whole(words: str) -> list[int]:
    return [int(number) for number in numbers(words)]


_SAMPLE_WORDS = {
    "idx": lambda words: {"index": int(words)},
    "tokens": lambda words: {"tokens": _whole(words)},
    "rl": lambda words: {"response_length": int(words)},
    "r": lambda words: {"reward": float(words)},
    "mask": lambda words: {"loss_mask": _whole(words)},
    "lp": lambda words: {"rollout_log_probs": numbers(words)},
    "rollout_id=": lambda words: {"rollout_id": int(words)},
}


def sample(words: str) -> Sample:
    """`idx1 tokens[1,2,3,4] rl3 mask[1,0,1] r0 TRUNCATED remove_sample rollout_id=1`, in any order."""
    fields: dict[str, Any] = {"status": Status.COMPLETED}
    for word in re.sub(r",\s+", ",", words.strip()).split():
        name = next((name for name in sorted(_SAMPLE_WORDS, key=len, reverse=True) if word.startswith(name)), None)
        if word.upper() in _STATUSES:
            fields["status"] = _STATUSES[word.upper()]
        elif word == "remove_sample":
            fields["remove_sample"] = True
        elif name is None:
            raise UnknownShape(f"{word!r} of the sample {words!r}")
        else:
            fields |= _SAMPLE_WORDS[name](word[len(name) :])
    return Sample(**fields)


def samples(words: str | list[Any]) -> list[Sample]:
    """`4 samples: idx0 ...; idx1 ...`, or a list of such words or of dicts with slime's names."""
    if isinstance(words, str):
        words = words.partition(":")[2].split(";")
    every = [sample(entry) if isinstance(entry, str) else _from_dict(entry) for entry in words]
    for place, member in enumerate(every):
        member.index = place if member.index is None else member.index
    return every


def _from_dict(fields: dict[str, Any]) -> Sample:
    status = Status(str(fields.get("status", "completed")).lower().rpartition(".")[2])
    values = {name: value for name, value in fields.items() if name in Sample.__dataclass_fields__}
    return Sample(**(values | {"status": status}))


class Appended(NamedTuple):
    """One call of `append_response_tokens`: `+[5,6] trainable lp[-.1,-.2] abort wv=3`."""

    tokens: list[int]
    trainable: bool
    log_probs: list[float] | None
    finish: str | None
    version: str | None


def appended(words: str) -> Appended:
    """The call that these words stand for."""
    match = re.fullmatch(r"\+\s*\[([^]]*)\]\s*(.*)", words.strip())
    if match is None:
        raise UnknownShape(f"step {words!r}")
    rest = match[2]
    log_probs = re.search(r"lp\s*(\[[^]]*\])", rest)
    version = re.search(r"wv\s*=\s*(\S+)", rest)
    finish = re.search(r"\b(stop|length|abort)\b", rest)
    return Appended(
        _whole(match[1]),
        "non-trainable" not in rest and "trainable" in rest,
        numbers(log_probs[1]) if log_probs else None,
        finish[1] if finish else None,
        version[1] if version else None,
    )


class Call(NamedTuple):
    """One call on a data source: `get(3)`, `add_samples(2 groups)`, `save(7)`, `new instance`, `load(7)`."""

    name: str
    number: int


_CALLS = {"get": "get", "ask": "get", "draw": "get", "add": "add", "buffer": "add", "save": "save", "load": "load"}
_CALLS |= {"new": "new", "restart": "new", "reopen": "new"}
_BETWEEN = re.compile(r"\s*(?:[;,]\s*(?:and\s+|then\s+)*(?=[a-z])|\bthen\s+|->)\s*", re.IGNORECASE)
_CALL_WORDS = re.compile(r"\s*(?:\w+\.|\w+\s*=\s*)*([a-z]+)[a-z_0-9]*[^\d(]*\(?[^\d)]*(\d*)", re.IGNORECASE)


def calls(steps: Any) -> Iterator[Call]:
    """The calls that these steps stand for: words, numbers of groups to ask for, dicts and pairs of name and number."""
    for step in steps if isinstance(steps, list) else _BETWEEN.split(str(steps)):
        match step:
            case int():
                yield Call("get", step)
            case [str(name), *rest]:
                yield _call(f"{name}({_size(rest[0]) if rest else ''})")
            case {"op": str(name), **rest} | {"call": str(name), **rest} | {"method": str(name), **rest}:
                yield _call(f"{name}({_size(next(iter(rest.values()), 0))})")
            case dict():
                yield from (_call(f"{name}({_size(value)})") for name, value in step.items())
            case _:
                yield _call(str(step))


def _call(words: str) -> Call:
    match = _CALL_WORDS.match(words)
    name = next((ours for start, ours in _CALLS.items() if match and match[1].lower().startswith(start)), None)
    if match is None or name is None:
        raise UnknownShape(f"step {words!r}")
    return Call(name, int(match[2] or 0))


def is_call(words: str) -> bool:
    """Whether a text says calls, and is no name of something."""
    return any(character.isdigit() for character in words)


def _size(value: Any) -> int:
    """A number of groups, given as it is or as a list of them."""
    return len(value) if isinstance(value, list) else int(value or 0)

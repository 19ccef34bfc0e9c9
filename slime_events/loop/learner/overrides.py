"""`Changes`: what is to be otherwise than a run has it: samples and groups dropped, rewards and verdicts replaced.

As a file, JSON lines:

    {"sample": "train-0-000007-s3", "reward": 0.5}              graded otherwise
    {"sample": "train-0-000007-s3", "drop": true}
    {"group": "train-0-000007", "drop": true}
    {"group": "train-0-000007", "accept": false, "reason": ""}  a verdict that would be another
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from schemas.errors import InvalidValue


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sample: str | None = None
    group: str | None = None
    reward: float | None = None
    drop: bool = False
    accept: bool | None = None
    reason: str | None = None

    def problem(self) -> str | None:
        """Why the line says nothing that can be done."""
        if (self.sample is None) == (self.group is None):
            return "it has to name a sample or a group"
        if self.sample is not None and self.accept is not None:
            return "a verdict is on a group, not on a sample"
        if self.group is not None and self.reward is not None:
            return "a reward is of a sample, not of a group"
        if (self.reward is not None) + self.drop + (self.accept is not None) != 1:
            return 'it has to say one of "reward", "drop" and "accept"'
        if self.reward is not None and not math.isfinite(self.reward):
            return f"{self.reward} is no reward"
        return None


class Changes(msgspec.Struct, frozen=True):
    """dropped, dropped_groups: trained on by nobody. rewards: by sample. verdicts: whether a group is accepted."""

    dropped: frozenset[str] = frozenset()
    dropped_groups: frozenset[str] = frozenset()
    rewards: dict[str, float] = {}
    verdicts: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self.dropped or self.dropped_groups or self.rewards or self.verdicts)

    def also(self, samples: Iterable[str]) -> Changes:
        """With these samples dropped too."""
        return msgspec.structs.replace(self, dropped=self.dropped | frozenset(samples))


def read_changes(data: bytes, source: str) -> Changes:
    """The changes that a file says; of two lines about the same the later holds. source: named in errors.

    Raises InvalidValue naming the line that cannot be understood.
    """
    dropped, dropped_groups = set[str](), set[str]()
    rewards, verdicts = dict[str, float](), dict[str, bool]()
    for number, text in enumerate(data.splitlines(), 1):
        if not text.strip():
            continue
        line = _line(text, f"{source}, line {number}")
        if line.sample is not None:
            if line.reward is None:
                dropped.add(line.sample)
            else:
                rewards[line.sample] = line.reward
        elif line.group is not None:
            if line.accept is None:
                dropped_groups.add(line.group)
            else:
                verdicts[line.group] = line.accept
    return Changes(frozenset(dropped), frozenset(dropped_groups), rewards, verdicts)


def _line(text: bytes, where: str) -> _Line:
    try:
        line = msgspec.json.decode(text, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidValue(f"{where} is no change: {error}") from error
    if problem := line.problem():
        raise InvalidValue(f"{where} is no change: {problem}")
    return line


def write_changes(changes: Changes) -> bytes:
    """The file that `read_changes` reads, always in the same order."""
    lines: list[dict[str, Any]] = [{"sample": sample, "drop": True} for sample in sorted(changes.dropped)]
    lines += [{"group": group, "drop": True} for group in sorted(changes.dropped_groups)]
    lines += [{"sample": sample, "reward": reward} for sample, reward in sorted(changes.rewards.items())]
    lines += [{"group": group, "accept": accept} for group, accept in sorted(changes.verdicts.items())]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)

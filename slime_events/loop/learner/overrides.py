"""`Overrides`: how a learner changes its parent's decisions: drops, rewards, verdicts and credit.

As a file, JSON lines:

    {"sample": "train-0-000007-s3", "reward": 0.5}              replace the reward
    {"sample": "train-0-000007-s3", "drop": true}
    {"group": "train-0-000007", "drop": true}
    {"group": "train-0-000007", "accept": false, "reason": ""}  replace the verdict
    {"credit": "discounted", "discount": 0.9}                   replace the credit rule of agents' sessions
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.errors import InvalidValue
from schemas.rewards import is_reward
from schemas.sessions import Credit
from slime_events.algorithms.credit import CreditRule


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sample: str | None = None
    group: str | None = None
    reward: float | None = None
    drop: bool = False
    accept: bool | None = None
    reason: str | None = None
    credit: Credit | None = None
    discount: float = 1.0

    def problem(self) -> str | None:
        """Return why the line is invalid; None if it is valid."""
        is_of_sample, graded, decided = self.sample is not None, self.reward is not None, self.accept is not None
        if self.credit is not None:
            others = (self.sample, self.group, self.reward, self.accept, self.drop or None)
            return None if others == (None,) * len(others) else "a credit rule must be alone on its line"
        problems = {
            "it must name either a sample or a group": is_of_sample == (self.group is not None),
            "a verdict belongs to a group, not to a sample": is_of_sample and decided,
            "a reward belongs to a sample, not to a group": graded and not is_of_sample,
            'it must have exactly one of "reward", "drop" and "accept"': graded + self.drop + decided != 1,
            f"{self.reward} is not a valid reward": self.reward is not None and not is_reward(self.reward),
        }
        return next((problem for problem, applies in problems.items() if applies), None)


class Overrides(msgspec.Struct, frozen=True):
    """A learner's changes to its parent's decisions."""

    dropped: Annotated[frozenset[str], doc("samples to leave out of training")] = frozenset()
    dropped_groups: Annotated[frozenset[str], doc("groups to leave out of training")] = frozenset()
    rewards: Annotated[dict[str, float], doc("sample to its new reward")] = {}
    verdicts: Annotated[dict[str, bool], doc("group to whether it is accepted")] = {}
    credit: Annotated[CreditRule | None, doc("credit rule of agents' sessions; None: the parent's")] = None

    def __bool__(self) -> bool:
        return bool(self.dropped or self.dropped_groups or self.rewards or self.verdicts or self.credit)


def read_overrides(data: bytes, source: str) -> Overrides:
    """Return the overrides in a file; a later line replaces an earlier one about the same thing. source: for errors.

    Raises InvalidValue, with the first invalid line.
    """
    lines = [_line(text, f"{source}, line {at}") for at, text in enumerate(data.splitlines(), 1) if text.strip()]
    return Overrides(
        frozenset(line.sample for line in lines if line.sample is not None and line.drop),
        frozenset(line.group for line in lines if line.group is not None and line.drop),
        {line.sample: line.reward for line in lines if line.sample is not None and line.reward is not None},
        {line.group: line.accept for line in lines if line.group is not None and line.accept is not None},
        next((CreditRule(line.credit, line.discount) for line in reversed(lines) if line.credit is not None), None),
    )


def _line(text: bytes, where: str) -> _Line:
    try:
        line = msgspec.json.decode(text, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidValue(f"{where} is not a valid change: {error}") from error
    if problem := line.problem():
        raise InvalidValue(f"{where} is not a valid change: {problem}")
    return line


def write_overrides(overrides: Overrides) -> bytes:
    """Return a file for `read_overrides`; its lines have a fixed order."""
    lines: list[dict[str, Any]] = [{"sample": sample, "drop": True} for sample in sorted(overrides.dropped)]
    lines += [{"group": group, "drop": True} for group in sorted(overrides.dropped_groups)]
    lines += [{"sample": sample, "reward": reward} for sample, reward in sorted(overrides.rewards.items())]
    lines += [] if overrides.credit is None else [overrides.credit._asdict()]
    lines += [{"group": group, "accept": accept} for group, accept in sorted(overrides.verdicts.items())]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)

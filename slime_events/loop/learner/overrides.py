"""`Overrides`: what a learner changes of its parent's decisions: dropped samples and groups, other rewards, verdicts,
credit.

As a file, JSON lines:

    {"sample": "train-0-000007-s3", "reward": 0.5}              another reward
    {"sample": "train-0-000007-s3", "drop": true}
    {"group": "train-0-000007", "drop": true}
    {"group": "train-0-000007", "accept": false, "reason": ""}  another verdict
    {"credit": "discounted", "discount": 0.9}                   another credit rule over the sessions of agents
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.errors import InvalidValue
from schemas.rewards import is_reward
from schemas.sessions import Credit
from slime_events.core.credit import CreditRule


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
        """Why the line is invalid, if it is."""
        is_of_sample, graded, decided = self.sample is not None, self.reward is not None, self.accept is not None
        if self.credit is not None:
            others = (self.sample, self.group, self.reward, self.accept, self.drop or None)
            return None if others == (None,) * len(others) else "a credit rule stands alone"
        problems = {
            "it has to name a sample or a group": is_of_sample == (self.group is not None),
            "a verdict is on a group, not on a sample": is_of_sample and decided,
            "a reward is of a sample, not of a group": graded and not is_of_sample,
            'it has to say one of "reward", "drop" and "accept"': graded + self.drop + decided != 1,
            f"{self.reward} is no reward": self.reward is not None and not is_reward(self.reward),
        }
        return next((problem for problem, is_one in problems.items() if is_one), None)


class Overrides(msgspec.Struct, frozen=True):
    """dropped, dropped_groups: not trained on. rewards: by sample. verdicts: whether a group is accepted. credit: the
    rule that sessions of agents are credited by; None as they were.
    """

    dropped: frozenset[str] = frozenset()
    dropped_groups: frozenset[str] = frozenset()
    rewards: dict[str, float] = {}
    verdicts: dict[str, bool] = {}
    credit: CreditRule | None = None

    def __bool__(self) -> bool:
        return bool(self.dropped or self.dropped_groups or self.rewards or self.verdicts or self.credit)


def read_overrides(data: bytes, source: str) -> Overrides:
    """The overrides in a file; of two lines about the same thing the later holds. source: named in errors.

    Raises InvalidValue naming the first invalid line.
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
        raise InvalidValue(f"{where} is no change: {error}") from error
    if problem := line.problem():
        raise InvalidValue(f"{where} is no change: {problem}")
    return line


def write_overrides(overrides: Overrides) -> bytes:
    """The file that `read_overrides` reads; its lines have a fixed order."""
    lines: list[dict[str, Any]] = [{"sample": sample, "drop": True} for sample in sorted(overrides.dropped)]
    lines += [{"group": group, "drop": True} for group in sorted(overrides.dropped_groups)]
    lines += [{"sample": sample, "reward": reward} for sample, reward in sorted(overrides.rewards.items())]
    lines += [] if overrides.credit is None else [overrides.credit._asdict()]
    lines += [{"group": group, "accept": accept} for group, accept in sorted(overrides.verdicts.items())]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)

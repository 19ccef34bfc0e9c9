"""`DrawStats`: how often each prompt was drawn, when last, and how many of its answers passed. A fold of the log.

A sampler draws by it. It depends on no file and no randomness, so the same log always gives the same draws.
"""

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.arrays import pack, unpack
from schemas.batches import BatchSealed
from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.runs import DrawnBefore, RunStarted
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from storage.log import Readable, Recorded

FOLDED = (
    "run.started", "prompt.submitted", "prompt.rejected", "group.accepted", "group.rejected", "batch.sealed",
    "step.committed",
)  # fmt: skip
"""Event types that change it."""
DECAY = 0.5
"""Weight of a prompt's earlier groups at each new one: its pass rate has to follow the policy."""


@dataclass(slots=True)
class PromptStats:
    """One prompt. times: drawn so far. version: weights at its last draw. passed, answers: of its groups, each weighted
    half of the next newer one. is_open: drawn and not decided; with recorded rollouts, not in a batch. is_refused: it
    is unusable.
    """

    times: int = 0
    version: int = -1
    passed: float = 0.0
    answers: float = 0.0
    is_open: bool = False
    is_refused: bool = False


NEVER = PromptStats()
"""Of a prompt that was never drawn."""


@dataclass(slots=True)
class DrawStats:
    """pass_reward: lowest reward that passes. only: groups whose prompts count, however drawn; None for all that a
    sampler drew. position: of the last event folded in. version: committed weights. by_path: prompts by source
    and row.
    """

    pass_reward: float = 1.0
    only: Collection[str] | None = None
    position: int = 0
    version: int = 0
    by_path: dict[str, dict[int, PromptStats]] = field(default_factory=dict)
    _rows: dict[str, PromptStats] = field(default_factory=dict)
    _recalled: dict[str, PromptStats] = field(default_factory=dict)

    def apply(self, recorded: Recorded) -> None:
        """Fold one event in; other types change the position alone."""
        self.position = recorded.position
        event = recorded.envelope.event
        if isinstance(event, PromptSubmitted):
            if self._counts(event):
                drawn = self.of(event.source.path, event.source.row)
                drawn.times, drawn.version, drawn.is_open = drawn.times + 1, self.version, True
                self._rows[event.group] = drawn
                if event.recalled is not None:
                    self._recalled[event.group] = drawn
        elif isinstance(event, PromptRejected):
            if event.source.seen:
                self.of(event.source.path, event.source.row).is_refused = True
        elif isinstance(event, GroupAccepted | GroupRejected):
            self._decided(event.group, event.rewards, accepted=isinstance(event, GroupAccepted))
        elif isinstance(event, BatchSealed):
            for group in self._recalled.keys() & event.groups:
                self._recalled.pop(group).is_open = False
        elif isinstance(event, StepCommitted):
            self.version = event.version
        elif isinstance(event, RunStarted) and event.branched is not None:
            self.version = event.branched.version
            for known in event.branched.draws or ():
                self._know(known)

    async def read(self, log: Readable, end: int) -> None:
        """Fold in the log up to position `end`, reading only the types that matter."""
        if not end:
            return
        events = [
            recorded
            for kind in FOLDED
            async for recorded in log.read(1, of_type(log.run, kind))
            if recorded.position <= end
        ]
        for recorded in sorted(events, key=lambda one: one.position):
            self.apply(recorded)
        self.position = end

    def of(self, path: str, row: int) -> PromptStats:
        """The stats of a prompt."""
        return self.by_path.setdefault(path, {}).setdefault(row, PromptStats())

    def known(self) -> tuple[DrawnBefore, ...]:
        """All stats, for a run that continues from here."""
        return tuple(
            DrawnBefore(
                path=path,
                rows=pack(list(rows), "int32"),
                times=pack([one.times for one in rows.values()], "int32"),
                versions=pack([one.version for one in rows.values()], "int32"),
                passed=pack([one.passed for one in rows.values()], "float32"),
                answers=pack([one.answers for one in rows.values()], "float32"),
                refused=pack([one.is_refused for one in rows.values()], "int8"),
            )
            for path, rows in sorted(self.by_path.items())
        )

    def _know(self, known: DrawnBefore) -> None:
        packed = (known.rows, known.times, known.versions, known.passed, known.answers, known.refused)
        columns = [unpack(one).tolist() for one in packed]
        for row, times, version, passed, answers, refused in zip(*columns, strict=True):
            drawn = PromptStats(times, version, passed, answers, is_refused=bool(refused))
            self.by_path.setdefault(known.path, {})[row] = drawn

    def _counts(self, event: PromptSubmitted) -> bool:
        if self.only is None:
            return bool(event.source.seen)
        return event.group in self.only and event.purpose is Purpose.TRAIN

    def _decided(self, group: str, rewards: Sequence[float], *, accepted: bool) -> None:
        drawn = self._rows.pop(group, None)
        if drawn is None:
            return
        if not accepted:
            self._recalled.pop(group, None)
        drawn.is_open = group in self._recalled
        if rewards:
            drawn.passed = drawn.passed * DECAY + sum(reward >= self.pass_reward for reward in rewards)
            drawn.answers = drawn.answers * DECAY + len(rewards)


def uniform(seed: int, purpose: str, number: int) -> float:
    """A number in [0, 1) that depends on the arguments alone."""
    digest = hashlib.blake2b(f"{seed}:{purpose}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def weight(passed: float, answers: float) -> float:
    """p (1 - p) with p = (passed + 1) / (answers + 2): a prompt that never passed keeps a small chance."""
    rate = (passed + 1.0) / (answers + 2.0)
    return rate * (1.0 - rate)


class Pool:
    """Prompts of one source that may be drawn now; a drawn one leaves. rates: (passed, answers) by row. rest: versions
    between two draws of a prompt.
    """

    def __init__(
        self, rates: Mapping[int, tuple[float, float]], known: Mapping[int, PromptStats], *, version: int, rest: int
    ) -> None:
        self._known, self._every = known, rates.keys()
        self._rows = sorted(row for row in rates if row not in known or _may_be_drawn(known[row], version, rest))
        self._weights = np.array([weight(*rates[row]) for row in self._rows], dtype=np.float64)
        self._gone: dict[int, bool] = {}
        self._times: Counter[int] = Counter()

    def draw(self, at: float) -> int | None:
        """The row at fraction `at` in [0, 1) of the cumulated weights; None where no row may be drawn now."""
        ends = np.cumsum(self._weights)
        if not len(ends) or ends[-1] <= 0:
            return None
        place = int(np.searchsorted(ends, at * ends[-1], side="right"))
        return self._rows[min(place, int(np.flatnonzero(self._weights)[-1]))]

    @property
    def rows(self) -> list[int]:
        """The rows that may be drawn now, in order."""
        return [row for row, chance in zip(self._rows, self._weights, strict=True) if chance > 0]

    def longest_ago(self) -> int | None:
        """The row with the oldest last draw, whether it may be drawn now or not; None where none is usable."""
        rows = {row: self._known.get(row, NEVER) for row in {*self._every, *self._gone} if not self._gone.get(row)}
        usable = {row: known for row, known in rows.items() if not known.is_refused}
        return min(
            usable, key=lambda row: (self._times[row], usable[row].version, usable[row].times, row), default=None
        )

    def times(self, row: int) -> int:
        """How often the row was drawn."""
        return self._times[row] + self._known.get(row, NEVER).times

    def remove(self, row: int, *, refused: bool) -> None:
        """Take a row out that was drawn or found unusable."""
        self._gone[row] = refused
        self._times[row] += 1
        place = bisect_left(self._rows, row)
        if place < len(self._rows) and self._rows[place] == row:
            self._weights[place] = 0.0

    def has(self, row: int) -> bool:
        """Whether the row was ever drawn."""
        return row in self._known or row in self._gone

    @property
    def drawn(self) -> int:
        """How many rows were ever drawn."""
        return len(self._known) + sum(1 for row in self._gone if row not in self._known)


def _may_be_drawn(drawn: PromptStats, version: int, rest: int) -> bool:
    return not (drawn.is_refused or drawn.is_open) and version - drawn.version >= rest

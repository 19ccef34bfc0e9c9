"""`DrawStats`: per prompt, the number of draws, the last draw, and the share of passed answers. A fold of the log.

Samplers draw by these numbers. They depend on no file and no randomness, so the same log always gives the same draws.
"""

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from schemas.arrays import pack, unpack
from schemas.batches import BatchSealed
from schemas.doc import doc
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
"""Event types that change the numbers."""
DECAY = 0.5
"""Weight of a prompt's earlier groups at each new group, so that its pass rate follows the policy."""


@dataclass(slots=True)
class PromptStats:
    """Numbers of a prompt."""

    times: Annotated[int, doc("number of draws")] = 0
    version: Annotated[int, doc("weight version at its last draw; -1: never drawn")] = -1
    passed: Annotated[float, doc("passed answers; each group weighs half of the next newer group")] = 0.0
    answers: Annotated[float, doc("answers, with the same weights")] = 0.0
    is_open: Annotated[bool, doc("drawn and undecided; with recorded rollouts, not in a batch")] = False
    is_refused: Annotated[bool, doc("unusable")] = False


NEVER = PromptStats()
"""Numbers of a prompt that was never drawn."""


@dataclass(slots=True)
class DrawStats:
    """Numbers of all prompts."""

    pass_reward: Annotated[float, doc("lowest reward of an answer that passes")] = 1.0
    only: Annotated[
        Collection[str] | None, doc("groups whose prompts count, however drawn; None: all that a sampler drew")
    ] = None
    position: Annotated[int, doc("position of the last event folded in")] = 0
    version: Annotated[int, doc("committed weights")] = 0
    by_path: Annotated[dict[str, dict[int, PromptStats]], doc("source to row to numbers")] = field(default_factory=dict)
    _rows: dict[str, PromptStats] = field(default_factory=dict)
    _recalled: dict[str, PromptStats] = field(default_factory=dict)

    def apply(self, recorded: Recorded) -> None:
        """Fold an event in. Types outside `FOLDED` change only the position."""
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
            for before in event.branched.draws or ():
                self._restore(before)

    async def read(self, log: Readable, end: int) -> None:
        """Fold in the log up to position `end`, reading only the types in `FOLDED`."""
        if not end:
            return
        events = [
            recorded
            for kind in FOLDED
            async for recorded in log.read(1, of_type(log.run, kind))
            if recorded.position <= end
        ]
        for recorded in sorted(events, key=lambda event: event.position):
            self.apply(recorded)
        self.position = end

    def of(self, path: str, row: int) -> PromptStats:
        """Return the numbers of a prompt."""
        return self.by_path.setdefault(path, {}).setdefault(row, PromptStats())

    def drawn_before(self) -> tuple[DrawnBefore, ...]:
        """Return all numbers, for a run that continues from here."""
        return tuple(
            DrawnBefore(
                path=path,
                rows=pack(list(rows), "int32"),
                times=pack([prompt.times for prompt in rows.values()], "int32"),
                versions=pack([prompt.version for prompt in rows.values()], "int32"),
                passed=pack([prompt.passed for prompt in rows.values()], "float32"),
                answers=pack([prompt.answers for prompt in rows.values()], "float32"),
                refused=pack([prompt.is_refused for prompt in rows.values()], "int8"),
            )
            for path, rows in sorted(self.by_path.items())
        )

    def _restore(self, before: DrawnBefore) -> None:
        packed = (before.rows, before.times, before.versions, before.passed, before.answers, before.refused)
        columns = [unpack(column).tolist() for column in packed]
        for row, times, version, passed, answers, refused in zip(*columns, strict=True):
            drawn = PromptStats(times, version, passed, answers, is_refused=bool(refused))
            self.by_path.setdefault(before.path, {})[row] = drawn

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
    """Return a number in [0, 1) that depends only on the arguments."""
    digest = hashlib.blake2b(f"{seed}:{purpose}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def weight(passed: float, answers: float) -> float:
    """Return p (1 - p) with p = (passed + 1) / (answers + 2): a prompt that never passed keeps a small chance."""
    rate = (passed + 1.0) / (answers + 2.0)
    return rate * (1.0 - rate)


class Pool:
    """Prompts of a source that may be drawn now. A drawn prompt leaves the pool.

    rates: row to (passed, answers). stats: numbers of drawn rows. rest: versions between two draws of a prompt.
    """

    def __init__(
        self, rates: Mapping[int, tuple[float, float]], stats: Mapping[int, PromptStats], *, version: int, rest: int
    ) -> None:
        self._stats, self._every = stats, rates.keys()
        self._rows = sorted(row for row in rates if row not in stats or _may_be_drawn(stats[row], version, rest))
        self._weights = np.array([weight(*rates[row]) for row in self._rows], dtype=np.float64)
        self._gone: dict[int, bool] = {}
        self._times: Counter[int] = Counter()

    def draw(self, at: float) -> int | None:
        """Return the row at fraction `at` in [0, 1) of the cumulative weights; None if no row may be drawn now."""
        ends = np.cumsum(self._weights)
        if not len(ends) or ends[-1] <= 0:
            return None
        index = int(np.searchsorted(ends, at * ends[-1], side="right"))
        return self._rows[min(index, int(np.flatnonzero(self._weights)[-1]))]

    @property
    def rows(self) -> list[int]:
        """The rows that may be drawn now, in order."""
        return [row for row, chance in zip(self._rows, self._weights, strict=True) if chance > 0]

    def longest_ago(self) -> int | None:
        """Return the row with the oldest last draw, even if it may not be drawn now; None if no row is usable."""
        rows = {row: self._stats.get(row, NEVER) for row in {*self._every, *self._gone} if not self._gone.get(row)}
        usable = {row: stats for row, stats in rows.items() if not stats.is_refused}
        return min(
            usable, key=lambda row: (self._times[row], usable[row].version, usable[row].times, row), default=None
        )

    def times(self, row: int) -> int:
        """Return how often a row was drawn."""
        return self._times[row] + self._stats.get(row, NEVER).times

    def remove(self, row: int, *, refused: bool) -> None:
        """Remove a row that was drawn or is unusable."""
        self._gone[row] = refused
        self._times[row] += 1
        index = bisect_left(self._rows, row)
        if index < len(self._rows) and self._rows[index] == row:
            self._weights[index] = 0.0

    def has(self, row: int) -> bool:
        """Return whether a row was ever drawn."""
        return row in self._stats or row in self._gone

    @property
    def drawn(self) -> int:
        """The number of rows that were ever drawn."""
        return len(self._stats) + sum(1 for row in self._gone if row not in self._stats)


def _may_be_drawn(drawn: PromptStats, version: int, rest: int) -> bool:
    return not (drawn.is_refused or drawn.is_open) and version - drawn.version >= rest

"""`Draws`: how often each prompt was sampled, when last, and how many of its answers passed. A fold of the log.

What a sampler chooses by. It holds no file and no randomness, so the same log gives the same draws for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from schemas.arrays import pack, unpack
from schemas.batches import BatchSealed
from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.runs import DrawnBefore, RunStarted
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from storage.log import Readable, Recorded

HEARS = (
    "run.started", "prompt.submitted", "prompt.rejected", "group.accepted", "group.rejected", "batch.sealed",
    "step.committed",
)  # fmt: skip
"""Types of the events that change it."""
DECAY = 0.5
"""Of what was known of a prompt before, with each new group of it: its pass rate has to follow the policy."""


@dataclass(slots=True)
class Drawn:
    """One prompt. times: drawn so far. version: of the weights when it was last. passed, answers: of its groups, each
    older one counting half of the next. is_open: drawn, and not decided yet; recorded rollouts until a batch has them.
    is_refused: it cannot be used.
    """

    times: int = 0
    version: int = -1
    passed: float = 0.0
    answers: float = 0.0
    is_open: bool = False
    is_refused: bool = False


@dataclass(slots=True)
class Draws:
    """pass_reward: the reward from which on an answer passes. only: the groups whose prompts count, in whatever order
    they were drawn; None for all that were drawn by what the log says. position: of the last event taken in. version:
    committed weights. by_path: prompts by source and row.
    """

    pass_reward: float = 1.0
    only: Collection[str] | None = None
    position: int = 0
    version: int = 0
    by_path: dict[str, dict[int, Drawn]] = field(default_factory=dict)
    _rows: dict[str, Drawn] = field(default_factory=dict)
    _recalled: dict[str, Drawn] = field(default_factory=dict)

    def apply(self, recorded: Recorded) -> None:
        """Fold one event in; those that it does not hear of change the position alone."""
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
        """Fold in what the log says up to position `end`, of nothing else."""
        if not end:
            return
        found = [
            recorded
            for kind in HEARS
            async for recorded in log.read(1, of_type(log.run, kind))
            if recorded.position <= end
        ]
        for recorded in sorted(found, key=lambda one: one.position):
            self.apply(recorded)
        self.position = end

    def of(self, path: str, row: int) -> Drawn:
        """What is known of a prompt."""
        return self.by_path.setdefault(path, {}).setdefault(row, Drawn())

    def known(self) -> tuple[DrawnBefore, ...]:
        """All that is known, for a run that goes on from here."""
        return tuple(_packed(path, rows) for path, rows in sorted(self.by_path.items()))

    def _know(self, known: DrawnBefore) -> None:
        columns = (known.rows, known.times, known.versions, known.passed, known.answers, known.refused)
        for row, times, version, passed, answers, refused in zip(
            *(unpack(one).tolist() for one in columns), strict=True
        ):
            self.by_path.setdefault(known.path, {})[row] = Drawn(
                times, version, passed, answers, is_refused=bool(refused)
            )

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


def _packed(path: str, rows: dict[int, Drawn]) -> DrawnBefore:
    drawn = list(rows.values())
    return DrawnBefore(
        path=path,
        rows=pack(list(rows), "int32"),
        times=pack([one.times for one in drawn], "int32"),
        versions=pack([one.version for one in drawn], "int32"),
        passed=pack([one.passed for one in drawn], "float32"),
        answers=pack([one.answers for one in drawn], "float32"),
        refused=pack([one.is_refused for one in drawn], "int8"),
    )

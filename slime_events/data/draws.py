"""`Draws`: how often each prompt was sampled, when last, and how many of its answers passed. A fold of the log.

What a sampler chooses by. It holds no file and no randomness, so the same log gives the same draws for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.runs import RunStarted
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from storage.log import Readable, Recorded

HEARS = ("run.started", "prompt.submitted", "prompt.rejected", "group.accepted", "group.rejected", "step.committed")
"""Types of the events that change it."""
DECAY = 0.5
"""Of what was known of a prompt before, with each new group of it: its pass rate has to follow the policy."""


@dataclass(slots=True)
class Drawn:
    """One prompt. times: drawn so far. version: of the weights when it was last. passed, answers: of its groups, each
    older one counting half of the next. is_open: drawn, and not decided yet. is_refused: it cannot be used.
    """

    times: int = 0
    version: int = -1
    passed: float = 0.0
    answers: float = 0.0
    is_open: bool = False
    is_refused: bool = False


@dataclass(slots=True)
class Draws:
    """pass_reward: the reward from which on an answer passes. position: of the last event taken in. version: committed
    weights. by_path: prompts by source and row.
    """

    pass_reward: float = 1.0
    position: int = 0
    version: int = 0
    by_path: dict[str, dict[int, Drawn]] = field(default_factory=dict)
    _rows: dict[str, Drawn] = field(default_factory=dict)

    def apply(self, recorded: Recorded) -> None:
        """Fold one event in; those that it does not hear of change the position alone."""
        self.position = recorded.position
        event = recorded.envelope.event
        if isinstance(event, PromptSubmitted):
            if event.source.seen:
                drawn = self.of(event.source.path, event.source.row)
                drawn.times, drawn.version, drawn.is_open = drawn.times + 1, self.version, True
                self._rows[event.group] = drawn
        elif isinstance(event, PromptRejected):
            if event.source.seen:
                self.of(event.source.path, event.source.row).is_refused = True
        elif isinstance(event, GroupAccepted | GroupRejected):
            self._decided(event.group, event.rewards)
        elif isinstance(event, StepCommitted):
            self.version = event.version
        elif isinstance(event, RunStarted) and event.branched is not None:
            self.version = event.branched.version

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

    def _decided(self, group: str, rewards: Sequence[float]) -> None:
        drawn = self._rows.pop(group, None)
        if drawn is None:
            return
        drawn.is_open = False
        if rewards:
            drawn.passed = drawn.passed * DECAY + sum(reward >= self.pass_reward for reward in rewards)
            drawn.answers = drawn.answers * DECAY + len(rewards)

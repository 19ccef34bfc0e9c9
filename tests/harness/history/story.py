"""`Story`: what the records so far tell of samples, groups and steps. The checks write it and read it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

Spans = list[tuple[int, int, int]]
"""(start, end, weight version), end to end over the response."""


@dataclass(slots=True)
class Sample:
    """A sample of a rollout.

    length: response tokens so far. turns: tokens in the log by turn; empty without turns. recorded: turns that have
    ended. exact: the only weight version that may generate it; None: any. readable: all of its content can be read.
    """

    group: str
    attempt: int = 0
    resting: bool = False
    length: int = 0
    spans: Spans = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)
    log_probs: list[bytes] = field(default_factory=list)
    turns: dict[int, int] = field(default_factory=dict)
    recorded: set[int] = field(default_factory=set)
    exact: int | None = None
    readable: bool = True
    completed: bool = False
    failed: bool = False
    digest: str = ""
    prompt_length: int = 0
    outcome: str = ""
    reward: float | None = None

    def content_digest(self) -> str:
        """sha256 over all token bytes, then all log-prob bytes."""
        return hashlib.sha256(b"".join(self.tokens) + b"".join(self.log_probs)).hexdigest()

    def release(self) -> None:
        """Let go of the bytes once they are digested."""
        self.tokens, self.log_probs = [], []

    @property
    def oldest(self) -> int | None:
        """The oldest weight version in it."""
        return min((version for _, _, version in self.spans), default=None)


@dataclass(slots=True)
class Group:
    """verdict: `accepted`, `rejected` or empty. step: of the batch that has it. bound: on staleness, where its rollouts
    are recorded ones; else the run's.
    """

    purpose: str = "train"
    dataset: str = "train"
    version: int | None = None
    samples: list[str] = field(default_factory=list)
    verdict: str = ""
    rewards: list[float] = field(default_factory=list)
    step: int | None = None
    bound: int | None = None


@dataclass(slots=True)
class Story:
    """Everything by its id. events: read so far. batches: samples and digest by step. weights: digest by committed or
    first version. first: the version that a branch begins with; cursors, passed: the next prompt of its sources, and
    those that do not come. follows: its batches are of the rollouts of another run, whose samples and groups these are;
    learned: the step of each that it was trained on.
    """

    samples: dict[str, Sample] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    batches: dict[int, tuple[list[str], str]] = field(default_factory=dict)
    weights: dict[int, str] = field(default_factory=dict)
    optimizers: dict[int, str] = field(default_factory=dict)
    restored: dict[int, set[str]] = field(default_factory=dict)
    published: dict[int, str] = field(default_factory=dict)
    unstored: set[int] = field(default_factory=set)
    events: int = 0
    steps: int = 0
    over: str = ""
    first: int = 0
    follows: bool = False
    learned: dict[str, int] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)
    passed: dict[str, list[int]] = field(default_factory=dict)
    bound: int | None = None

"""`RunState`: the whole run as a fold of its log."""

from __future__ import annotations

import enum
import hashlib

import msgspec

from schemas.event import Purpose
from schemas.runs import Branched
from slime_events.core.state.group import GroupPhase, GroupState

FOLD = 3
"""Version of the state and its rules: raised with every change that gives a log another state digest."""


class RunPhase(enum.StrEnum):
    """Where a run stands."""

    NEW = "new"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class Counts(msgspec.Struct, kw_only=True):
    """How many, since the beginning. Groups and samples are of training; evaluation counts its own."""

    prompts_submitted: int = 0
    prompts_rejected: int = 0
    groups_requested: int = 0
    groups_accepted: int = 0
    groups_rejected: int = 0
    groups_trained: int = 0
    samples_completed: int = 0
    samples_failed: int = 0
    suspensions: int = 0
    rewards_failed: int = 0
    response_tokens: int = 0
    eval_samples: int = 0
    checkpoints: int = 0
    segments: int = 0


class EvalState(msgspec.Struct, kw_only=True):
    """An evaluation under way: its groups, in order."""

    dataset: str
    version: int
    groups: list[str] = []


class SealedState(msgspec.Struct, kw_only=True):
    """A batch that waits for its step."""

    groups: tuple[str, ...]
    digest: str


class RunState(msgspec.Struct, kw_only=True):
    """What the run adds up to at position `events`.

    chain: sha256 over the bytes of all events in order, so that no event can be missing or changed. version: of the
    newest committed weights (-1 before version 0), published: of the newest that engines can load. cursors: prompts
    drawn so far by source. batch_starts: position of the oldest prompt in each batch, by step, from the newest
    checkpoint on: how far back a trainer that starts from it has to read. next_step: the first step that is not sealed.
    activated: version by engine. moved: position of the newest event that brought the run on. broken_in_a_row: groups
    rejected for a failed rollout, reward or filter since the last that was not. branched: of a run that goes on from a
    version of another; there is no such field in the state of one that does not, so its digest is as ever.
    """

    run: str
    events: int = 0
    moved: int = 0
    chain: str = ""
    phase: RunPhase = RunPhase.NEW
    failure: str = ""
    groups: dict[str, GroupState] = {}
    waiting: list[str] = []
    accepted: list[str] = []
    sealed: dict[int, SealedState] = {}
    cursors: dict[str, int] = {}
    batch_starts: dict[int, int] = {}
    next_step: int = 0
    version: int = -1
    published: int = -1
    weights_digest: str = ""
    optimizer_digest: str = ""
    activated: dict[str, int] = {}
    evals: dict[str, EvalState] = {}
    evals_begun: dict[str, int] = {}
    eval_means: dict[str, float] = {}
    broken_in_a_row: int = 0
    rejections: dict[str, int] = {}
    counts: Counts = msgspec.field(default_factory=Counts)
    branched: Branched | msgspec.UnsetType = msgspec.UNSET

    @property
    def first(self) -> int:
        """The version that the run begins with: 0, or that of another run."""
        return 0 if self.branched is msgspec.UNSET else self.branched.version

    @property
    def follows(self) -> bool:
        """Whether its batches are of another run's rollouts."""
        return self.branched is not msgspec.UNSET and self.branched.follows

    @property
    def steps(self) -> int:
        """Steps committed, those before a branch's beginning included."""
        return max(self.version, 0)

    def in_phase(self, phase: GroupPhase) -> list[GroupState]:
        """Training groups in one phase, by the order they were requested in."""
        found = [g for g in self.groups.values() if g.phase == phase and g.purpose is Purpose.TRAIN]
        return sorted(found, key=lambda group: group.order)

    @property
    def unsealed_groups(self) -> int:
        """Open groups that no batch has yet."""
        return self.open_groups - sum(len(sealed.groups) for sealed in self.sealed.values())

    @property
    def open_groups(self) -> int:
        """requested - (trained + rejected): what backpressure bounds."""
        counts = self.counts
        return counts.groups_requested - counts.groups_trained - counts.groups_rejected


def state_digest(state: RunState) -> str:
    """sha256 of the state in canonical form, hex. Equal digests are equal states."""
    # Through plain values, since the encoder that sorts keys takes no steps for keys.
    plain = msgspec.to_builtins(state, str_keys=True, builtin_types=(bytes,), order="sorted")
    return hashlib.sha256(msgspec.msgpack.encode(plain)).hexdigest()

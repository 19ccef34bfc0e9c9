"""`RunState`: the whole run, folded from its log."""

import enum
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from schemas.event import Purpose
from schemas.runs import Branched
from slime_events.core.state.group import GroupPhase, GroupState
from slime_events.core.state.group_index import GroupIndex

FOLD = 4
"""Version of the state and its rules. Raise it with every change that gives a log another state digest."""
FOLD_WITH_TEXTS = 3
"""The version before it, the same but for a state that held what its samples say."""
INDEX = "group_index"
"""Where a state keeps it: no field, so it is in no digest and no snapshot."""


class RunPhase(enum.StrEnum):
    """Stage of a run."""

    NEW = "new"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class Counts(msgspec.Struct, kw_only=True):
    """Totals since the beginning. Groups and samples of training; evaluation counts its own."""

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
    """A sealed batch that is not trained yet."""

    groups: tuple[str, ...]
    digest: str


class FunctionState(msgspec.Struct, kw_only=True):
    """What a rollout function has asked for and returned. wanted: groups to be drawn since the beginning; drawn: those
    that were. next: the first step that it has not returned. returned: groups of steps without a batch, in order; those
    that are rejected leave it. dropped: groups to be rejected, since it did not return them. evaluated: the newest
    version that it evaluated.
    """

    wanted: int = 0
    drawn: int = 0
    next: int = 0
    returned: dict[int, list[str]] = {}
    dropped: list[str] = []
    evaluated: int = -1

    def step_of(self, group: str) -> int | None:
        """The step whose batch is to have it."""
        return next((step for step, groups in self.returned.items() if group in groups), None)


class RunState(msgspec.Struct, kw_only=True, dict=True):
    """The run after so many events. Positions in it count events too: the n-th is at n, wherever it lies in the log. So
    a log folds to the same state with foreign records in it and without.

    chain: sha256 over the bytes of all events in order: a missing or changed event changes it. version: newest
    committed weights (-1 before version 0); published: newest weights that engines can load. cursors: prompts drawn so
    far, by source. batch_starts: position of the oldest prompt in each batch since the newest checkpoint, by step: a
    trainer that starts from the checkpoint reads from there. next_step: the first step that is not sealed. activated:
    version by engine. moved: position of the newest event that counts as progress.
    broken_in_a_row: groups rejected in a row for a failed rollout, reward or filter; outside_in_a_row: those of them
    from outside. branched: only of a run that continues a version of another run; UNSET elsewhere, so that the
    digests of other states do not change; and so is function, of a run that a rollout function makes the rollouts
    of. offered: groups of prompts from outside that nobody has taken in yet, with the position of the offer;
    priorities: of prompts that wait and have one. Both UNSET before there was one. foreign: records before its last
    event that are none. No digest has foreign and outside_in_a_row: recorded ones stay what they are.
    """

    run: str
    events: int = 0
    foreign: int = 0
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
    outside_in_a_row: int = 0
    rejections: dict[str, int] = {}
    counts: Counts = msgspec.field(default_factory=Counts)
    branched: Branched | msgspec.UnsetType = msgspec.UNSET
    function: FunctionState | msgspec.UnsetType = msgspec.UNSET
    offered: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    priorities: dict[str, int] | msgspec.UnsetType = msgspec.UNSET

    @property
    def offers(self) -> dict[str, int]:
        """Those that nobody has taken in yet."""
        return {} if self.offered is msgspec.UNSET else self.offered

    @property
    def by_function(self) -> FunctionState:
        """What a rollout function has done so far; in a run that has none, nothing."""
        return FunctionState() if self.function is msgspec.UNSET else self.function

    @property
    def position(self) -> int:
        """Where its last event lies in the log."""
        return self.events + self.foreign

    @property
    def first(self) -> int:
        """The first version: 0, or the version of another run that this one continues."""
        return 0 if self.branched is msgspec.UNSET else self.branched.version

    @property
    def follows(self) -> bool:
        """Whether its batches are made of another run's rollouts."""
        return self.branched is not msgspec.UNSET and self.branched.follows

    @property
    def steps(self) -> int:
        """Steps committed, including those before a branch began."""
        return max(self.version, 0)

    @property
    def index(self) -> GroupIndex:
        """Of its groups. Made when it is asked for, kept while events are folded in, and in no snapshot."""
        index: GroupIndex | None = self.__dict__.get(INDEX)
        if index is None or len(index) != len(self.groups) - len(self.waiting):
            index = self.__dict__[INDEX] = GroupIndex(self.groups, self.waiting)
        return index

    def wait(self, group: GroupState) -> None:
        """A new training group waits for its first request."""
        self.waiting.append(group.group)
        if (index := self.__dict__.get(INDEX)) is not None:
            index.waits(group)

    def begin(self, group: GroupState) -> None:
        """A group waits no more, or never did."""
        if (index := self.__dict__.get(INDEX)) is not None:
            index.begins(group)

    def leave(self, name: str) -> GroupState | None:
        """A group that does not wait is forgotten; None where there is none of this name."""
        if (index := self.__dict__.get(INDEX)) is not None:
            index.leaves(name)
        return self.groups.pop(name, None)

    def in_phase(self, phase: GroupPhase) -> list[GroupState]:
        """Training groups in one phase behind SUBMITTED, in the order of their requests."""
        groups = [g for g in self.index.begun if g.phase == phase and g.purpose is Purpose.TRAIN]
        return sorted(groups, key=lambda group: group.order)

    @property
    def unsealed_groups(self) -> int:
        """Open groups that are in no batch yet."""
        return self.open_groups - sum(len(sealed.groups) for sealed in self.sealed.values())

    @property
    def open_groups(self) -> int:
        """requested - (trained + rejected): backpressure limits it."""
        counts = self.counts
        return counts.groups_requested - counts.groups_trained - counts.groups_rejected


def state_digest(state: RunState) -> str:
    """sha256 of the state in canonical form, hex. Equal digests mean equal states."""
    return _digest(_plain(state))


def digest_by(fold: int, state: RunState, told: Callable[[GroupState], GroupState]) -> str | None:
    """The digest that this version of the rules gives such a state; None for versions that cannot be told any more.

    told: a group with the texts of its samples.
    """
    if fold == FOLD:
        return state_digest(state)
    if fold != FOLD_WITH_TEXTS:
        return None
    groups = {name: told(group) for name, group in state.groups.items()}
    plain = _plain(msgspec.structs.replace(state, groups=groups))
    for group in plain["groups"].values():
        group["samples"] = {name: dict(sorted({"text": "", **one}.items())) for name, one in group["samples"].items()}
    return _digest(plain)


def _plain(state: RunState) -> Any:
    # Through plain values: the encoder that sorts keys takes no integers as keys.
    plain = msgspec.to_builtins(state, str_keys=True, builtin_types=(bytes,), order="sorted")
    del plain["foreign"], plain["outside_in_a_row"]
    return plain


def _digest(plain: Any) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(plain)).hexdigest()

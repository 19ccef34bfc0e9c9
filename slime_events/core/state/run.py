"""`RunState`: the whole run, folded from its log."""

import enum
import hashlib
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.event import Purpose
from schemas.ids import group_of
from schemas.placements import PlacementPlanned
from schemas.runs import Branched
from slime_events.core.state.group import GroupPhase, GroupState, SampleState
from slime_events.core.state.group_index import GroupIndex

FOLD = 4
"""Version of the state and its rules. Increase it with each change that gives a log a different state digest."""
FOLD_WITH_TEXTS = 3
"""The version before: the same rules, but a state that has its samples' texts."""
INDEX = "group_index"
"""Key of the index in a state's `__dict__`: it is not a field, so no digest and no snapshot has it."""


class RunPhase(enum.StrEnum):
    """Stage of a run."""

    NEW = "new"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class Counts(msgspec.Struct, kw_only=True):
    """Totals since the start of the run. Groups and samples are those of training unless the field says otherwise."""

    prompts_submitted: Annotated[int, doc("prompts taken into the run")] = 0
    prompts_rejected: Annotated[int, doc("prompts that could not be used")] = 0
    groups_requested: Annotated[int, doc("groups whose rollouts were requested")] = 0
    groups_accepted: Annotated[int, doc("groups accepted by the filter")] = 0
    groups_rejected: Annotated[int, doc("groups rejected, for any cause")] = 0
    groups_trained: Annotated[int, doc("groups trained on")] = 0
    samples_completed: Annotated[int, doc("training rollouts that ended")] = 0
    samples_failed: Annotated[int, doc("rollouts that failed, evaluations included")] = 0
    suspensions: Annotated[int, doc("suspensions of rollouts at step boundaries")] = 0
    rewards_failed: Annotated[int, doc("samples whose grading failed, evaluations included")] = 0
    response_tokens: Annotated[int, doc("response tokens of training rollouts that ended")] = 0
    eval_samples: Annotated[int, doc("rollouts of evaluations that ended")] = 0
    checkpoints: Annotated[int, doc("checkpoints saved")] = 0
    segments: Annotated[int, doc("archive segments sealed")] = 0


class EvalState(msgspec.Struct, kw_only=True):
    """An evaluation in progress."""

    dataset: str
    version: Annotated[int, doc("weight version under evaluation")]
    groups: Annotated[list[str], doc("its groups, in order")] = []


class SealedState(msgspec.Struct, kw_only=True):
    """A sealed batch that is not trained yet."""

    groups: tuple[str, ...]
    digest: str


class FunctionState(msgspec.Struct, kw_only=True):
    """Progress of a rollout function."""

    wanted: Annotated[int, doc("groups that it has requested to be drawn, in total")] = 0
    drawn: Annotated[int, doc("groups that were drawn for it, in total")] = 0
    next: Annotated[int, doc("first step that it has not returned")] = 0
    returned: Annotated[
        dict[int, list[str]], doc("step to its returned groups, for steps without a batch; without rejected groups")
    ] = {}
    dropped: Annotated[list[str], doc("groups to reject, because it did not return them")] = []
    evaluated: Annotated[int, doc("newest version that it evaluated; -1: none")] = -1

    def step_of(self, group: str) -> int | None:
        """Return the step whose returned groups contain `group`; None if no step's do."""
        return next((step for step, groups in self.returned.items() if group in groups), None)

    def leave(self, group: str) -> None:
        """Remove a group from those that it returned or dropped."""
        self.dropped = [name for name in self.dropped if name != group]
        if (step := self.step_of(group)) is not None:
            self.returned[step].remove(group)


class RunState(msgspec.Struct, kw_only=True, dict=True):
    """The run after a number of events.

    Positions in it count events: the n-th event is at n, regardless of its log position. So a log gives the same state
    with and without foreign records. Fields that are UNSET do not change the digests of states that do not use them.
    `state_digest` ignores `foreign` and `outside_in_a_row`, so that recorded digests stay valid.
    """

    run: str
    events: Annotated[int, doc("number of events folded in")] = 0
    foreign: Annotated[int, doc("records before the last event that are not events")] = 0
    moved: Annotated[int, doc("position of the newest event that counts as progress")] = 0
    chain: Annotated[str, doc("sha256 over the bytes of all events in order, hex")] = ""
    phase: RunPhase = RunPhase.NEW
    failure: Annotated[str, doc("why the run failed; empty: it has not")] = ""
    groups: Annotated[dict[str, GroupState], doc("open groups by id")] = {}
    waiting: Annotated[list[str], doc("training groups without a request, in order of arrival")] = []
    accepted: Annotated[list[str], doc("accepted groups without a batch, in order")] = []
    sealed: Annotated[dict[int, SealedState], doc("step to its sealed batch, until it is trained")] = {}
    cursors: Annotated[dict[str, int], doc("source to the number of prompts drawn from it")] = {}
    batch_starts: Annotated[
        dict[int, int],
        doc(
            "step to the position of the oldest prompt in its batch, since the newest checkpoint: a trainer that "
            "starts from the checkpoint reads from there"
        ),
    ] = {}
    next_step: Annotated[int, doc("first step without a batch")] = 0
    version: Annotated[int, doc("newest committed weights; -1 before version 0")] = -1
    published: Annotated[int, doc("newest weights that engines can load; -1 before version 0")] = -1
    weights_digest: str = ""
    optimizer_digest: str = ""
    activated: Annotated[dict[str, int], doc("engine to the weight version that it runs")] = {}
    evals: Annotated[dict[str, EvalState], doc("evaluations in progress, by id")] = {}
    evals_begun: Annotated[dict[str, int], doc("data set to the newest version whose evaluation has begun")] = {}
    eval_means: Annotated[dict[str, float], doc("data set to its newest mean reward")] = {}
    broken_in_a_row: Annotated[int, doc("consecutive groups rejected for a failed rollout, reward or filter")] = 0
    outside_in_a_row: Annotated[int, doc("groups from producers among `broken_in_a_row`")] = 0
    rejections: Annotated[dict[str, int], doc("cause to the number of rejected groups")] = {}
    counts: Counts = msgspec.field(default_factory=Counts)
    branched: Annotated[
        Branched | msgspec.UnsetType, doc("the run and version that this run continues; UNSET: it is not a branch")
    ] = msgspec.UNSET
    function: Annotated[
        FunctionState | msgspec.UnsetType, doc("UNSET until a rollout function makes rollouts of the run")
    ] = msgspec.UNSET
    offered: Annotated[
        dict[str, int] | msgspec.UnsetType,
        doc("offered groups that are not submitted, to the position of the offer; UNSET until the first offer"),
    ] = msgspec.UNSET
    priorities: Annotated[
        dict[str, int] | msgspec.UnsetType,
        doc("priority of waiting groups that have one; UNSET until there is one"),
    ] = msgspec.UNSET
    unstored: Annotated[
        dict[int, str] | msgspec.UnsetType,
        doc("committed versions whose files are not complete yet, to their digests; UNSET until there is one"),
    ] = msgspec.UNSET
    placement: Annotated[
        PlacementPlanned | msgspec.UnsetType, doc("where the newest incarnation's processes are; UNSET until planned")
    ] = msgspec.UNSET

    @property
    def to_store(self) -> dict[int, str]:
        """`unstored`, or empty if it is UNSET."""
        return {} if self.unstored is msgspec.UNSET else self.unstored

    @property
    def offers(self) -> dict[str, int]:
        """`offered`, or empty if it is UNSET."""
        return {} if self.offered is msgspec.UNSET else self.offered

    @property
    def by_function(self) -> FunctionState:
        """`function`, or a new state if it is UNSET."""
        return FunctionState() if self.function is msgspec.UNSET else self.function

    @property
    def position(self) -> int:
        """Log position of its last event."""
        return self.events + self.foreign

    @property
    def first(self) -> int:
        """The first version: 0, or the version of another run that this one continues."""
        return 0 if self.branched is msgspec.UNSET else self.branched.version

    @property
    def follows(self) -> bool:
        """Whether it trains on the rollouts of a different run."""
        return self.branched is not msgspec.UNSET and self.branched.follows

    @property
    def steps(self) -> int:
        """Number of committed steps, including those before a branch."""
        return max(self.version, 0)

    @property
    def index(self) -> GroupIndex:
        """Index of its groups, created on first use and updated by the fold. No snapshot has it."""
        index: GroupIndex | None = self.__dict__.get(INDEX)
        if index is None or len(index) != len(self.groups) - len(self.waiting):
            index = self.__dict__[INDEX] = GroupIndex(self.groups, self.waiting)
        return index.refresh()

    @property
    def changed_groups(self) -> dict[str, None] | None:
        """Names of groups for the index to look at again; None without an index."""
        index: GroupIndex | None = self.__dict__.get(INDEX)
        return None if index is None else index.changed

    def change(self, group: GroupState) -> None:
        """Tell the index that an event changes a group."""
        if (changed := self.changed_groups) is not None:
            changed[group.group] = None

    def changed_sample(self, sample: str) -> SampleState | None:
        """Return the sample with this id for a rule that changes it or its group; None if the group is not open."""
        group = self.groups.get(group_of(sample))
        if group is None:
            return None
        self.change(group)
        return group.samples.get(sample)

    def advance(self, source: str, offset: int) -> None:
        """Move the cursor of a source behind its prompt at `offset`."""
        self.cursors[source] = max(self.cursors.get(source, 0), offset + 1)

    def wait(self, group: GroupState) -> None:
        """Add a new training group that waits for its first request."""
        self.waiting.append(group.group)
        if (index := self.__dict__.get(INDEX)) is not None:
            index.waits(group)

    def begin(self, group: GroupState) -> None:
        """Tell the index that a group does not wait, or stops waiting."""
        if (index := self.__dict__.get(INDEX)) is not None:
            index.begins(group)

    def end_wait(self, name: str) -> None:
        """Remove a group from those that wait."""
        self.waiting.remove(name)
        self.begin(self.groups[name])
        if self.priorities is not msgspec.UNSET:
            self.priorities.pop(name, None)

    def leave(self, name: str) -> GroupState | None:
        """Remove a group that does not wait. Returns None if there is no such group."""
        if (index := self.__dict__.get(INDEX)) is not None:
            index.leaves(name)
        return self.groups.pop(name, None)

    def in_phase(self, phase: GroupPhase) -> list[GroupState]:
        """Return training groups in a phase after SUBMITTED, in the order of their requests."""
        if phase is GroupPhase.REQUESTED:
            return list(self.index.requested.values())
        groups = [group for group in self.index if group.phase is phase and group.purpose is Purpose.TRAIN]
        return sorted(groups, key=lambda group: group.order)

    @property
    def unsealed_groups(self) -> int:
        """Number of open groups without a batch."""
        return self.open_groups - sum(len(sealed.groups) for sealed in self.sealed.values())

    @property
    def open_groups(self) -> int:
        """Number of open groups, requested - (trained + rejected), which backpressure limits."""
        counts = self.counts
        return counts.groups_requested - counts.groups_trained - counts.groups_rejected


def state_digest(state: RunState) -> str:
    """Return the sha256 of the state in canonical form, hex. Equal digests mean equal states."""
    return _digest(_plain(state))


def digest_by(fold: int, state: RunState, with_texts: Callable[[GroupState], GroupState]) -> str | None:
    """Return the state's digest under a version of the rules; None for unsupported versions.

    with_texts: returns a group with the texts of its samples.
    """
    if fold == FOLD:
        return state_digest(state)
    if fold != FOLD_WITH_TEXTS:
        return None
    groups = {name: with_texts(group) for name, group in state.groups.items()}
    plain = _plain(msgspec.structs.replace(state, groups=groups))
    for group in plain["groups"].values():
        samples = group["samples"].items()
        group["samples"] = {name: dict(sorted({"text": "", **sample}.items())) for name, sample in samples}
    return _digest(plain)


def _plain(state: RunState) -> dict[str, Any]:
    # The encoder that sorts keys does not support integer keys, so convert to plain values first.
    plain: dict[str, Any] = msgspec.to_builtins(state, str_keys=True, builtin_types=(bytes,), order="sorted")
    del plain["foreign"], plain["outside_in_a_row"]
    return plain


def _digest(plain: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(plain)).hexdigest()

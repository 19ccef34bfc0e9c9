"""A run: how it starts, resumes, branches and ends."""

import enum
from typing import Any

import msgspec

from schemas.arrays import Array, BlobRef
from schemas.event import Event


class DrawnBefore(msgspec.Struct, frozen=True, kw_only=True):
    """What a branched run takes over about the prompts of one source: arrays [prompts], an entry for each prompt drawn
    by the parent.

    path: of the source. rows: which prompts. times: how often they were drawn, by weights `versions` the last time.
    passed, answers: of their groups, each older one counting half of the next. refused: 1 where unusable.
    """

    path: str
    rows: Array
    times: Array
    versions: Array
    passed: Array
    answers: Array
    refused: Array


class Branched(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run branches off: at weight `version` of another run, whose log up to `position` is this run's past too.

    run: the parent's name; where: what it is opened with (the path of its folder, or the URL of its archive).
    weights_digest, optimizer_digest, critic_digest: of the trainer at that version; no optimizer_digest: the optimizer
    begins anew, and a critic too.
    cursors: by source, the first prompt that the parent had not finished: this run draws from there. passed: by source,
    later prompts that the parent had trained or rejected already; they are not drawn again.
    follows: this run generates nothing; its batches are of the parent's rollouts, also of those after `position`.
    changes: the file of a follower's overrides (samples dropped or graded differently), in its blob store. draws: the
    parent's draw statistics, for samplers that use them.
    """

    run: str
    where: str
    position: int
    version: int
    weights_digest: str
    optimizer_digest: str
    cursors: dict[str, int] = {}
    passed: dict[str, tuple[int, ...]] = {}
    follows: bool = False
    changes: BlobRef | None = None
    draws: tuple[DrawnBefore, ...] | msgspec.UnsetType = msgspec.UNSET
    critic_digest: str = ""


class PromptFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of prompts held when an incarnation began.

    path: as the settings name it, without a slice. size: its bytes, packed if it is packed. digest: sha256 of them, or
    of blocks of a large file (`slime_events.loop.prompts.prompt_files`).
    """

    path: str
    size: int
    digest: str


class _AboutTheRun:
    __slots__ = ()

    def entity(self) -> str:
        return "run"


class RunStarted(_AboutTheRun, Event, frozen=True, kw_only=True, tag="run.started"):
    """The launcher, once, before anything else.

    settings: what flags and TOML resolved to, one table per component. code_version: of this package.
    environment: versions of the parts (python, torch, sglang, megatron, nats). branched: None for a run that begins
    with its base checkpoint. prompt_files: those that prompts and evaluations are read from.
    Example:
    `RunStarted(settings={...}, code_version="0.1.0", environment={"torch": "2.13.0"})`.
    """

    settings: dict[str, Any]
    code_version: str
    environment: dict[str, str] = {}
    branched: Branched | None = None
    prompt_files: tuple[PromptFile, ...] | msgspec.UnsetType = msgspec.UNSET


class RunResumed(_AboutTheRun, Event, frozen=True, kw_only=True, tag="run.resumed"):
    """The launcher, each time a stopped run resumes. Fenced on all events of the run itself: of two only one wins.

    incarnation: 1 for the first resumption. Participants of an earlier one end when they read this. settings:
    what changes from here on, by field; everything else stays. prompt_files: as they are now.
    """

    incarnation: int
    code_version: str
    environment: dict[str, str] = {}
    settings: dict[str, dict[str, Any]] = {}
    prompt_files: tuple[PromptFile, ...] | msgspec.UnsetType = msgspec.UNSET

    def identity(self) -> tuple[str | int, ...]:
        return ("run", self.incarnation)


class FinishReason(enum.StrEnum):
    """Why a run ended well."""

    ALL_STEPS = "all_steps"
    INTERRUPTED = "interrupted"


class RunFinished(_AboutTheRun, Event, frozen=True, kw_only=True, tag="run.finished"):
    """The conductor, last. Fenced on the whole log, so `state_digest` is that of everything before it.

    steps: training steps committed in all. events: how many events the state was folded from (= its position).
    fold: version of the rules that folded it (`slime_events.core.state.run.FOLD`); others may give another digest.
    """

    reason: FinishReason
    steps: int
    events: int
    state_digest: str
    fold: int = 1

    def identity(self) -> tuple[str | int, ...]:
        return ("run", self.events)


class RunFailed(_AboutTheRun, Event, frozen=True, kw_only=True, tag="run.failed"):
    """Any participant that notices that the run cannot go on. waited_for: what did not come by its deadline."""

    role: str
    reason: str
    waited_for: str | None = None
    at_events: int = 0

    def identity(self) -> tuple[str | int, ...]:
        return ("run", self.role, self.at_events)


RunEvent = RunStarted | RunResumed | RunFinished | RunFailed
"""The events of the run itself."""

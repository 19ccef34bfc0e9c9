"""A run: how it starts, resumes, branches and ends."""

import enum
from typing import Annotated, Any

import msgspec

from schemas.arrays import Array, BlobRef
from schemas.doc import doc
from schemas.event import Event


class DrawnBefore(msgspec.Struct, frozen=True, kw_only=True):
    """Draw statistics of one prompt source that a branched run inherits: one entry per prompt that the parent drew."""

    path: Annotated[str, doc("Path of the source.")]
    rows: Annotated[Array, doc("int32 [prompts]: row of each prompt.")]
    times: Annotated[Array, doc("int32 [prompts]: how often it was drawn.")]
    versions: Annotated[Array, doc("int32 [prompts]: weight version at its last draw.")]
    passed: Annotated[
        Array, doc("float32 [prompts]: passed answers of its groups; each older group counts half as much as the next.")
    ]
    answers: Annotated[Array, doc("float32 [prompts]: answers of its groups, weighted as `passed`.")]
    refused: Annotated[Array, doc("int8 [prompts]: 1 if the prompt is unusable.")]


class Branched(msgspec.Struct, frozen=True, kw_only=True):
    """Branch point: weights `version` of another run. The parent's log up to `position` is this run's past too."""

    run: Annotated[str, doc("Name of the parent run.")]
    where: Annotated[str, doc("Path of the parent's folder, or URL of its archive.")]
    position: Annotated[int, doc("Last log position of the parent that belongs to this run's past.")]
    version: Annotated[int, doc("Weight version of the parent.")]
    weights_digest: Annotated[str, doc("sha256 (hex) of the parent's weights at that version.")]
    optimizer_digest: Annotated[
        str, doc("sha256 (hex) of its optimizer state; empty: optimizer and critic start anew.")
    ]
    cursors: Annotated[
        dict[str, int],
        doc("By source: the first prompt that the parent had not finished. This run draws from that prompt on."),
    ] = {}
    passed: Annotated[
        dict[str, tuple[int, ...]],
        doc("By source: later prompts that the parent had trained or rejected. This run does not draw them again."),
    ] = {}
    follows: Annotated[
        bool,
        doc("The run generates nothing: its batches consist of the parent's rollouts, also of those after `position`."),
    ] = False
    changes: Annotated[
        BlobRef | None,
        doc("File with a follower's overrides (samples dropped or graded differently), in this run's blob store."),
    ] = None
    draws: Annotated[
        tuple[DrawnBefore, ...] | msgspec.UnsetType, doc("The parent's draw statistics, for samplers that use them.")
    ] = msgspec.UNSET
    critic_digest: Annotated[str, doc("sha256 (hex) of the parent's critic state; empty without a critic.")] = ""


class PromptFile(msgspec.Struct, frozen=True, kw_only=True):
    """State of a prompt file when an incarnation began."""

    path: Annotated[str, doc("Path in the settings, without a slice.")]
    size: Annotated[int, doc("Size on disk in bytes, compressed if the file is compressed.")]
    digest: Annotated[
        str, doc("sha256 of the bytes, or of blocks of a large file (`slime_events.loop.prompts.prompt_files`).")
    ]


class _AboutTheRun:
    __slots__ = ()

    def entity(self) -> str:
        return "run"


class RunStarted(_AboutTheRun, Event, frozen=True, kw_only=True, tag="run.started"):
    """Appended by the launcher, once, as the first event.

    Example: `RunStarted(settings={...}, code_version="0.1.0", environment={"torch": "2.13.0"})`.
    """

    settings: Annotated[dict[str, Any], doc("Resolved settings of flags and TOML, one table per component.")]
    code_version: Annotated[str, doc("Version of this package.")]
    environment: Annotated[dict[str, str], doc("Versions of python, torch, sglang, megatron and nats, by name.")] = {}
    branched: Annotated[Branched | None, doc("Branch point; None if the run starts from its base checkpoint.")] = None
    prompt_files: Annotated[
        tuple[PromptFile, ...] | msgspec.UnsetType, doc("Files from which prompts and evaluations are read.")
    ] = msgspec.UNSET


class RunResumed(_AboutTheRun, Event, frozen=True, kw_only=True, tag="run.resumed"):
    """Appended by the launcher, each time a stopped run resumes. Participants of earlier incarnations end when they
    read it.

    It is fenced on all events of the run itself: of two concurrent resumptions one succeeds.
    """

    incarnation: Annotated[int, doc("1 for the first resumption.")]
    code_version: Annotated[str, doc("Version of this package.")]
    environment: Annotated[dict[str, str], doc("Versions, as in `run.started`.")] = {}
    settings: Annotated[dict[str, dict[str, Any]], doc("Changed settings by component and field.")] = {}
    prompt_files: Annotated[
        tuple[PromptFile, ...] | msgspec.UnsetType, doc("Prompt files at the time of the resumption.")
    ] = msgspec.UNSET

    def identity(self) -> tuple[str | int, ...]:
        return ("run", self.incarnation)


class FinishReason(enum.StrEnum):
    """Why a run finished without a failure."""

    ALL_STEPS = "all_steps"
    INTERRUPTED = "interrupted"


class RunFinished(_AboutTheRun, Event, frozen=True, kw_only=True, tag="run.finished"):
    """Appended by the conductor as the last event, fenced on the whole log: `state_digest` covers everything before."""

    reason: Annotated[FinishReason, doc("Why the run finished.")]
    steps: Annotated[int, doc("Training steps committed in total.")]
    events: Annotated[int, doc("Number of events from which the state was folded, and the log position.")]
    state_digest: Annotated[str, doc("Digest of the folded state.")]
    fold: Annotated[
        int,
        doc(
            "Version of the fold's rules (`slime_events.core.state.run.FOLD`); other versions may give another digest."
        ),
    ] = 1

    def identity(self) -> tuple[str | int, ...]:
        return ("run", self.events)


class RunFailed(_AboutTheRun, Event, frozen=True, kw_only=True, tag="run.failed"):
    """Appended by any participant that notices that the run cannot continue."""

    role: Annotated[str, doc("Role of the participant that failed.")]
    reason: Annotated[str, doc("Explanation.")]
    waited_for: Annotated[str | None, doc("Missing event or participant, if a deadline passed.")] = None
    at_events: Annotated[int, doc("Log position at the failure.")] = 0

    def identity(self) -> tuple[str | int, ...]:
        return ("run", self.role, self.at_events)


RunEvent = RunStarted | RunResumed | RunFinished | RunFailed
"""The events of the run itself."""

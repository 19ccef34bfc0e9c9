"""Registry of all event types, by tag."""

from schemas.archives import ArchiveSealed
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.commands import CommandDone, CommandGiven
from schemas.devices import DeviceReleased, DeviceTaken, DeviceWanted
from schemas.evals import EvalCompleted
from schemas.event import Event, type_of
from schemas.groups import GroupAccepted, GroupRejected
from schemas.placements import PlacementPlanned
from schemas.prompts import PromptOffered, PromptRejected, PromptSubmitted, PromptWanted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import (
    RolloutCompleted,
    RolloutFailed,
    RolloutOffered,
    RolloutProgressed,
    RolloutRequested,
    RolloutReturned,
    RolloutSuspended,
)
from schemas.runs import RunFailed, RunFinished, RunResumed, RunStarted
from schemas.sessions import SessionOpened, SessionSealed
from schemas.steps import StepClaimed, StepCommitted
from schemas.trainers import TrainerRestored
from schemas.transfers import TransferBegun, TransferEnded, TransferJoined
from schemas.turns import TurnBegun, TurnRecorded
from schemas.weights import WeightsActivated, WeightsPublished, WeightsStored
from schemas.workers import WorkerJoined, WorkerLost

EVENT_CLASSES: tuple[type[Event], ...] = (
    *(RunStarted, RunResumed, RunFinished, RunFailed),
    *(PromptOffered, PromptSubmitted, PromptRejected, PromptWanted),
    *(
        RolloutOffered,
        RolloutRequested,
        RolloutProgressed,
        RolloutCompleted,
        RolloutSuspended,
        RolloutFailed,
        RolloutReturned,
    ),
    *(TurnBegun, TurnRecorded),
    *(SessionOpened, SessionSealed),
    *(RewardAssigned, RewardFailed),
    *(GroupAccepted, GroupRejected),
    *(CommandGiven, CommandDone),
    *(BatchSealed, StepClaimed, StepCommitted, TrainerRestored),
    *(WeightsPublished, WeightsStored, WeightsActivated),
    *(TransferJoined, TransferBegun, TransferEnded),
    *(EvalCompleted, CheckpointSaved, ArchiveSealed),
    *(WorkerJoined, WorkerLost),
    PlacementPlanned,
    *(DeviceWanted, DeviceTaken, DeviceReleased),
)

BY_TYPE: dict[str, type[Event]] = {type_of(cls): cls for cls in EVENT_CLASSES}

NOUNS: tuple[str, ...] = tuple(dict.fromkeys(tag.split(".")[0] for tag in BY_TYPE))
"""First subject tokens after the run. A run's stream holds exactly the subjects with these."""

_FOLLOWED: tuple[type[Event], ...] = (
    *(RunStarted, RunResumed, RunFinished, RunFailed),
    *(BatchSealed, WeightsPublished, TransferBegun),
)
ANNOUNCED: frozenset[str] = frozenset(type_of(cls) for cls in _FOLLOWED)
"""Types that all engines follow, with few events and few writers: a back-end may announce them beside the log."""

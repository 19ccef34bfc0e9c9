"""`VersionView`: a weight version, its origin and its use."""

from __future__ import annotations

from typing import Annotated

import msgspec

from schemas.checkpoints import CheckpointSaved
from schemas.doc import doc
from schemas.evals import EvalCompleted
from schemas.runs import Branched
from schemas.trainers import TrainerRestored
from schemas.weights import WeightsActivated, WeightsPublished, WeightsStored
from slime_events.model import Run, Version


class VersionView(msgspec.Struct, frozen=True, kw_only=True):
    """A weight version."""

    version: Annotated[int, doc("number of the version; 0 is what the run starts from")]
    published: Annotated[WeightsPublished | None, doc("its publication")]
    published_at: Annotated[int | None, doc("UTC of its publication [ns]")]
    stored: Annotated[WeightsStored | None, doc("its files, if they were complete after its commit")]
    is_stored: Annotated[bool, doc("whether its files are complete")]
    step: Annotated[int | None, doc("step that made it; None for the version that a run starts from")]
    branched: Annotated[Branched | None, doc("point of the parent run, if a branch starts from this version")]
    activations: Annotated[tuple[WeightsActivated, ...], doc("its loads, one per engine")]
    evals: Annotated[tuple[EvalCompleted, ...], doc("its evaluations")]
    checkpoint: Annotated[CheckpointSaved | None, doc("the checkpoint with these weights")]
    restored: Annotated[tuple[TrainerRestored, ...], doc("trainers that took over and resumed from it")]


def view_version(run: Run, version: Version) -> VersionView:
    """Return a weight version. run: has its evaluations."""
    number, branched = version.version, run.branched
    return VersionView(
        version=number,
        published=version.published.event if version.published else None,
        published_at=version.published.at if version.published else None,
        is_stored=version.committed is None or version.committed.event.stored or version.stored is not None,
        stored=version.stored.event if version.stored else None,
        step=version.committed.event.step if version.committed else None,
        branched=branched if branched and branched.version == number else None,
        activations=tuple(activation.event for activation in version.activations),
        evals=tuple(done.event for done in run.evals if done.event.version == number),
        checkpoint=version.checkpoint.event if version.checkpoint else None,
        restored=tuple(entry.event for entry in version.restored),
    )

"""Steps, what they trained, how old it was, and the weights that they made."""

from __future__ import annotations

from functools import partial
from typing import Any

from schemas.trainers import Fidelity, TrainerRestored
from schemas.weights import WeightsStored
from tests.audit.doctored import Doctored, Record
from tests.audit.doctoring import (
    Doctor,
    Doctoring,
    Select,
    Several,
    again,
    also,
    both,
    change,
    drop,
    every,
    following,
    move,
    position,
    say,
    the,
)
from tests.audit.doctorings.decisions import SEALED, sealed_again
from tests.audit.doctorings.rollouts import ACCEPTED

OTHER = "0" * 64


def step(number: int) -> Select:
    return the("step.committed", step=number)


def published(version: int) -> Select:
    return the("weights.published", version=version)


def activated(version: int) -> Several:
    return every("weights.activated", version=version)


def restored(version: int, after: Select, digest: str = OTHER, **fields: Any) -> Doctor:
    """A trainer takes over."""
    vague = {"optimizer": Fidelity.APPROXIMATE, "optimizer_digest": digest, "checkpoint": 0, "trainer": "t"}
    return say(TrainerRestored(**vague | {"version": version} | fields), after)


def stored(version: int, digest: str = "", behind: int = 3) -> Doctor:
    """A version is stored after the publication of version `behind`. Its digest is that of version 3, or another."""

    def doctor(log: Doctored) -> list[Record]:
        same = published(3)(log).event["digest"]
        return say(WeightsStored(version=version, digest=digest or same, url="u", bytes=1), published(behind))(log)

    return doctor


row = partial(Doctoring, "steps")
STEPS = (
    row("of a trainer that was replaced", change(step(2), record={"producer": "late"}), names=("late", 0)),
    row("without a claim", drop(the("step.claimed")), (), counts={"trainers": 0}),
    row("committed twice", again(step(2)), names=(2,)),
    row("taken out", drop(step(1)), (step(2), step(3), step(4)), (2, 1)),
    row("from another version", change(step(2), parent_version=1), names=("v3", "v1", "v2")),
    row("to another version", change(step(2), version=4), names=("v4", "v2", "v3")),
    row("without a batch", drop(the("batch.sealed", step=4)), (step(4),)),
    row("another batch digest", change(step(2), batch_digest=OTHER)),
    row("another count of samples", change(step(2), samples=7), names=(7, 6)),
    row("another count of tokens", change(step(2), tokens=7), names=(7,)),
    row(
        "after an approximate optimizer",
        restored(3, published(3)),
        (),
        counts={"restored": 1, "steps after an approximate optimizer": 2},
    ),
    row("a trainer that continues from an older version", restored(2, published(3)), names=("v2", "v3")),
    row("approximate weights", restored(3, published(3), weights=Fidelity.APPROXIMATE), names=("approximate",)),
    row("an exact optimizer of another digest", restored(3, published(3), optimizer=Fidelity.EXACT)),
    row("an old actor of other weights", change(step(2), models={"old_actor v1": OTHER}), names=("old_actor v1",)),
    row(
        "another teacher than before",
        both(change(step(1), models={"teacher": OTHER}), change(step(2), models={"teacher": "1" * 64})),
        (step(2),),
        names=("teacher",),
    ),
    row(
        "one teacher",
        both(change(step(1), models={"teacher": OTHER}), change(step(3), models={"teacher": OTHER})),
        (),
    ),
    row("a learner's other count of samples", change(step(0), samples=7), names=(7, 6), log="learner"),
)

row = partial(Doctoring, "training")
LAST = the("batch.sealed", step=4)
TRAINING = (
    row("not yet committed", drop(step(4)), (), counts={"trained": 24, "waiting for step 4 to be committed": 6}),
    row("not yet sealed", drop(LAST, step(4)), (), counts={"trained": 24, "waiting for the batch of step 4": 6}),
    row(
        "left over",
        change(the("group.rejected"), type="group.accepted"),
        (),
        counts={"left over after the last step": 3},
    ),
    row("samples trained twice", sealed_again, (step(1),) * 6, (position(step(0)),)),
    row("samples that were not accepted", drop(ACCEPTED), (step(0),) * 3, ("train-0-000004-s0",)),
    row("a sample that is nobody's", change(SEALED, samples=lambda s: ["x", *s]), (step(0),), ("x",)),
)


def made_by(version: int | None, sample: str = "train-1-000002-s0") -> Doctor:
    """Every token of a sample of step 2 was made by a version, or by none that is known."""

    def doctor(log: Doctored) -> list[Record]:
        for record in log.records:
            if record.type in ("rollout.progressed", "rollout.completed") and record.event["sample"] == sample:
                spans = record.event["spans"]
                record.event["spans"] = [] if version is None else [[start, end, version] for start, end, _ in spans]
        return [step(2)(log)]

    return doctor


row = partial(Doctoring, "staleness")
STALENESS = (
    row("older than is allowed", made_by(1), names=("train-1-000002-s0", "v1", "v2", 1, 0)),
    row("of no version", made_by(None), (), counts={"samples by versions behind": {"0": 29}}),
    row("a sample that is nobody's", change(SEALED, samples=lambda s: ["x", *s]), (), counts={"at worst": 0}),
    row("newer than what it trained", made_by(3), names=("v3", "v2", -1)),
)

ACTIVATED = the("weights.activated", version=3)
CHECKPOINT = the("checkpoint.saved", version=2)
row = partial(Doctoring, "weights")
WEIGHTS = (
    row("published twice", again(published(3)), names=("v3",)),
    row("published after a newer one", both(drop(activated(3)), move(published(3), before=following(published(4))))),
    row("another parent", change(published(3), parent=1), names=(1, 2)),
    row("a parent of the first", change(published(0), parent=0)),
    row("of no step", drop(step(4)), (published(5),), ("v5",)),
    row("a checkpoint of no step", drop(step(1)), (published(2), CHECKPOINT), ("v2",)),
    row("another digest", also(change(published(3), digest=OTHER), activated(3)), names=(2,)),
    row("stored although it was before", stored(3), names=("v3",)),
    row("stored with another digest", stored(3, digest=OTHER), names=(2,)),
    row("stored by no step", stored(9), names=("v9",)),
    row("stored after its commit", both(change(step(2), stored=False), stored(3)), ()),
    row("stored twice", both(change(step(2), stored=False), stored(3), stored(3, behind=4)), names=("v3",)),
    row("never stored", change(step(2), stored=False), (the("run.finished"),), ("v3",)),
    row("an engine with what nobody published", change(ACTIVATED, version=9), names=("v9",)),
    row("an engine with other weights", change(ACTIVATED, digest=OTHER)),
    row("a checkpoint of other weights", change(CHECKPOINT, weights_digest=OTHER), names=(1,)),
    row("a checkpoint of another optimizer", change(CHECKPOINT, optimizer_digest=OTHER), names=(1,)),
    row("a checkpoint of another critic", change(CHECKPOINT, critic_digest=OTHER), names=(1,)),
    row(
        "a checkpoint of the optimizer that a trainer continued with",
        both(restored(2, published(2)), change(CHECKPOINT, optimizer_digest=OTHER)),
        (),
    ),
    row(
        "a branch from other weights",
        also(change(published(1), digest=OTHER), activated(1)),
        names=("v1", "sim"),
        log="branch",
    ),
    row(
        "a branch without its beginning",
        drop(published(1)),
        (activated(1), published(2), published(3)),
        log="branch",
    ),
)

TABLE = (*STEPS, *TRAINING, *STALENESS, *WEIGHTS)

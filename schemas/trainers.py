"""A trainer that continues from the steps of an earlier trainer."""

import enum
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.event import Event


class Fidelity(enum.StrEnum):
    """Whether a state is equal to the committed state, bit for bit."""

    EXACT = "exact"
    APPROXIMATE = "approximate"


class WeightsDistance(msgspec.Struct, frozen=True, kw_only=True):
    """Distance of weights from the committed weights, over all tensors."""

    max_abs: Annotated[float, doc("Largest absolute difference of one number.")]
    relative_l2: Annotated[float, doc("L2 norm of the difference over that of the committed weights; no unit.")]


class TrainerRestored(Event, frozen=True, kw_only=True, tag="trainer.restored"):
    """Appended by a trainer that takes over, once, in one append with its claim, when it has reached the last commit.

    If the optimizer is approximate, the next version still starts from exactly these weights, but training the steps
    again from an earlier checkpoint does not reproduce it.
    """

    version: Annotated[int, doc("Newest committed weight version, from which training continues.")]
    trainer: Annotated[str, doc("Worker id of the trainer.")]
    checkpoint: Annotated[int, doc("Weight version of the checkpoint that the trainer loaded.")]
    optimizer: Annotated[
        Fidelity, doc("Approximate if the state of the optimizer, or of a critic, differs from the committed state.")
    ]
    weights: Annotated[
        Fidelity, doc("Always exact: if retraining gave different weights, they are loaded from their files.")
    ] = Fidelity.EXACT
    retrained: Annotated[int, doc("Steps since the checkpoint that were trained again from the log.")] = 0
    differing: Annotated[
        int, doc("Retrained steps whose weights or optimizer state differed from the committed state.")
    ] = 0
    skipped: Annotated[
        int,
        doc(
            "Steps since the checkpoint that were not trained again because they exceed --max-retrained-steps. The "
            "newest weights are loaded from their files; the optimizer's moments lack these steps."
        ),
    ] = 0
    distance: Annotated[
        WeightsDistance | None,
        doc("Largest distance of retrained from committed weights; None if none differed or none could be compared."),
    ] = None
    optimizer_digest: Annotated[
        str, doc("sha256 (hex) of the optimizer state that training continues with; empty if none was committed.")
    ] = ""
    seconds: Annotated[float, doc("Seconds that loading and retraining took.")] = 0.0
    critic_digest: Annotated[
        str, doc("sha256 (hex) of the critic state that training continues with; empty if none was committed.")
    ] = ""

    IDENTITY = ("version", "trainer")

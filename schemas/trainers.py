"""A trainer that goes on from what an earlier one has trained."""

import enum

import msgspec

from schemas.event import Event


class Fidelity(enum.StrEnum):
    """Whether something is bit for bit what was committed."""

    EXACT = "exact"
    APPROXIMATE = "approximate"


class WeightsDistance(msgspec.Struct, frozen=True, kw_only=True):
    """How far weights are from others, over all tensors. max_abs: the largest difference of one number.

    relative_l2: norm of the difference over the norm of the committed weights; no unit.
    """

    max_abs: float
    relative_l2: float


class TrainerRestored(Event, frozen=True, kw_only=True, tag="trainer.restored"):
    """A trainer that takes over, once, when it is where the one before it was: with its claim, in one append.

    version: the newest that was committed, which it goes on from. trainer: its worker id. checkpoint: the version that
    it loaded, or the run's first. retrained: steps since, trained again from the log; differing: those of them that
    came out with other weights or another optimizer state than committed. skipped: steps since the checkpoint that were
    not trained again, being too many (max-retrained-steps): the newest weights were loaded from their files, and the
    optimizer's moments lack these steps. weights: always exact; where training came
    to others, they were loaded from their files. distance: of those others from the committed, the largest of all
    steps; None where no weights differed or none could be compared. optimizer: approximate where its state is not the
    committed one, or a critic's is not; optimizer_digest, critic_digest: sha256 (hex) of the states that it goes on
    with, empty where none was committed. seconds: of loading and training again.

    With an approximate optimizer the next version is still made of exactly these weights, but training the steps
    again from an earlier checkpoint does not come to it.
    """

    version: int
    trainer: str
    checkpoint: int
    optimizer: Fidelity
    weights: Fidelity = Fidelity.EXACT
    retrained: int = 0
    differing: int = 0
    skipped: int = 0
    distance: WeightsDistance | None = None
    optimizer_digest: str = ""
    seconds: float = 0.0
    critic_digest: str = ""

    IDENTITY = ("version", "trainer")

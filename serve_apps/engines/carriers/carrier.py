"""`Carrier`: a way by which the bytes of a weight version reach an engine's host. The log has only their digest."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from schemas.doc import doc
from schemas.weights import WeightsPublished
from storage.weights.whole_copies import COPIES


@dataclass(frozen=True, slots=True)
class WeightPlaces:
    """Places of weights on an engine's host besides the published folders."""

    url: Annotated[
        str | None, doc("This run's weight store, for versions that were published from a folder that is missing here.")
    ] = None
    copies: Annotated[
        str | None, doc("Folder of this host for whole copies of deltas. None: beside the stored versions.")
    ] = None

    def copies_of(self, stored: Path) -> Path:
        """Return the folder for the copy of a stored version."""
        return Path(self.copies) if self.copies else stored.parent / COPIES


BESIDE = WeightPlaces()


class Carrier(Protocol):
    """One way. Each is a class in a file of this folder, with a line in `registry.py`.

    What a carrier prepares has the published digest, whatever it was asked of: an engine loads nothing else.
    """

    def __init__(self, places: WeightPlaces) -> None:
        """Create it for one engine."""

    def carries(self, published: WeightsPublished) -> bool:
        """Return whether the version comes this way. A carrier of stored versions decides it by `published.url`."""

    def prepare(self, published: WeightsPublished, held: ExitStack) -> Path:
        """Return a whole folder of the version, with the published digest, that stays here while `held` is open.

        Any earlier version can be prepared too. Raises WeightsDamaged, StoreUnavailable, NoSpace.
        """

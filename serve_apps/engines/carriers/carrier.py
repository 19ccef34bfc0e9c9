"""`Carrier`: a way by which the bytes of a weight version reach an engine's host. The log has only their digest."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol

from schemas.doc import doc
from schemas.transfers import TransferBegun
from schemas.weights import WeightsCarrier, WeightsPublished
from serve_apps.engines.engine import Receiver
from slime_events.core.run.participant import Participant
from storage.weights.whole_copies import WholeCopies


@dataclass(frozen=True, slots=True)
class WeightPlaces:
    """Places of weights on an engine's host besides the published folders, and what failed there."""

    url: Annotated[
        str | None, doc("This run's weight store, for versions that were published from a folder that is missing here.")
    ] = None
    copies: Annotated[str | None, doc("Folder of this host for whole copies of deltas. None: see `WholeCopies`.")] = (
        None
    )
    run: Annotated[str, doc("The run, for what the trainer on this host hands over; empty: nothing.")] = ""
    failures: Annotated[
        Counter[WeightsCarrier], doc("Failures of a carrier since its last success, of all engines at this place.")
    ] = field(default_factory=Counter)

    @property
    def whole_copies(self) -> WholeCopies:
        """The whole copies of deltas on this host."""
        return WholeCopies(Path(self.copies) if self.copies else None)


BESIDE = WeightPlaces()


class Carrier(Protocol):
    """One way. Each is a class in a file of this folder, with a line in `registry.py`.

    What a carrier prepares has the published digest, whatever it was asked of: an engine loads nothing else.
    """

    def __init__(self, places: WeightPlaces) -> None:
        """Create it for one engine."""

    def carries(self, published: WeightsPublished) -> bool:
        """Return whether the version comes this way. A carrier of stored versions decides it by `published.url`."""

    def prepare(self, published: WeightsPublished, held: ExitStack) -> Path | None:
        """Return a whole folder of the version, with the published digest, that stays here while `held` is open.

        Any earlier version can be prepared too. None: it does not come this way any more, or not to this host. Raises
        WeightsDamaged, StoreUnavailable, NoSpace.
        """


class LiveCarrier(Protocol):
    """A way by which an engine receives a version itself, without files. It is in the same registry.

    The engine checks the published digest before it generates. If anything fails, it loads the files.
    """

    def __init__(self, worker: Participant, engine: Receiver) -> None:
        """Create it for one engine."""

    def carries(self, published: WeightsPublished) -> bool:
        """Return whether the version comes this way. Each version does so once at most."""

    async def prepare(self, published: WeightsPublished) -> TransferBegun:
        """Return the group in which the engine receives the version. Raises DeadlineExceeded."""

"""`offering_of`: the trainer's side of the carrier that `--update-weight-transport` names."""

from collections.abc import Callable, Mapping

from schemas.weights import WeightsCarrier
from storage.weights.manifest import WeightManifest
from storage.weights.offering import Offering
from storage.weights.shared_versions import SharedVersions

Due = Callable[[int], bool]


class BroadcastVersions:
    """See `Offering`. `TransferDesk` sends the stored files of the newest version to engines that wait for it."""

    def __init__(self, run: str, due: Due) -> None:
        self._due = due

    def offer(self, folder: str, manifest: WeightManifest) -> None:
        pass  # the stored files are sent

    def carrier(self, version: int, digest: str) -> WeightsCarrier:
        return WeightsCarrier.COLLECTIVE if self._due(version) else WeightsCarrier.FILES

    def retire(self, newest: int | None) -> None:
        pass  # engines wait only for the newest version


OFFERINGS: Mapping[str, Callable[[str, Due], Offering]] = {
    "shared-memory": SharedVersions,
    "collective": BroadcastVersions,
}
"""By the value of the setting. A transport that is not here offers nothing besides the stored files."""


def offering_of(transport: str, run: str, due: Due) -> Offering | None:
    """Return what offers a run's versions. due: whether engines will load a version."""
    offering = OFFERINGS.get(transport)
    return offering and offering(run, due)

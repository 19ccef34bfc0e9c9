"""`offering_of`: the trainer's side of the carrier that `--update-weight-transport` names."""

from collections.abc import Callable, Mapping

from storage.weights.offering import Offering
from storage.weights.shared_versions import SharedVersions

Due = Callable[[int], bool]
OFFERINGS: Mapping[str, Callable[[str, Due], Offering]] = {
    "shared-memory": SharedVersions,
}
"""By the value of the setting. A transport that is not here offers nothing besides the stored files."""


def offering_of(transport: str, run: str, due: Due) -> Offering | None:
    """Return what offers a run's versions. due: whether engines will load a version."""
    offering = OFFERINGS.get(transport)
    return offering and offering(run, due)

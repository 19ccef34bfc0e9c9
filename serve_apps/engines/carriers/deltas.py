"""`Deltas`: versions that are stored as the changes from an earlier one, on a disk that this host sees."""

from contextlib import ExitStack
from pathlib import Path

from schemas.weights import WeightsPublished
from serve_apps.engines.carriers.carrier import WeightPlaces
from storage.folders.places import is_remote, local_path
from storage.weights.files import is_delta


class Deltas:
    """See `Carrier`. It makes a whole copy on this host."""

    def __init__(self, places: WeightPlaces) -> None:
        self._places = places

    def carries(self, published: WeightsPublished) -> bool:
        return not is_remote(published.url) and is_delta(local_path(published.url))

    def prepare(self, published: WeightsPublished, held: ExitStack) -> Path:
        return held.enter_context(self._places.whole_copies.hold(published.url, published.digest))

"""`ObjectStore`: versions at a URL (`s3://`), in full or as deltas, which this host downloads once into its cache."""

from contextlib import ExitStack
from pathlib import Path

from schemas.weights import WeightsPublished
from serve_apps.engines.carriers.carrier import WeightPlaces
from storage.folders.places import is_remote


class ObjectStore:
    """See `Carrier`. It makes a whole copy of a delta on this host."""

    def __init__(self, places: WeightPlaces) -> None:
        self._places = places

    def carries(self, published: WeightsPublished) -> bool:
        return is_remote(published.url)

    def prepare(self, published: WeightsPublished, held: ExitStack) -> Path:
        return held.enter_context(self._places.whole_copies.hold(published.url, published.digest))

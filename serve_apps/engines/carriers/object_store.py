"""`ObjectStore`: versions at a URL (`s3://`), which this host downloads once into its cache."""

from contextlib import ExitStack
from pathlib import Path

from schemas.weights import WeightsPublished
from serve_apps.engines.carriers.carrier import WeightPlaces
from storage.folders.places import is_remote, local_copy
from storage.weights.stored_version import verify


class ObjectStore:
    """See `Carrier`."""

    def __init__(self, places: WeightPlaces) -> None:
        pass

    def carries(self, published: WeightsPublished) -> bool:
        return is_remote(published.url)

    def prepare(self, published: WeightsPublished, held: ExitStack) -> Path:
        verify(published.url, published.digest)
        return held.enter_context(local_copy(published.url))

"""`Folders`: versions that are stored whole in a folder of this host, or on a disk that hosts share."""

from contextlib import ExitStack
from pathlib import Path

from schemas.weights import WeightsPublished
from serve_apps.engines.carriers.carrier import WeightPlaces
from storage.folders.places import is_remote, local_path
from storage.weights.files import is_delta
from storage.weights.stored_version import verify


class Folders:
    """See `Carrier`."""

    def __init__(self, places: WeightPlaces) -> None:
        pass

    def carries(self, published: WeightsPublished) -> bool:
        return not is_remote(published.url) and not is_delta(local_path(published.url))

    def prepare(self, published: WeightsPublished, held: ExitStack) -> Path:
        verify(folder := local_path(published.url), published.digest)
        return folder

"""`STORED`: the carriers of stored versions. A version comes by the first that carries it."""

from collections.abc import Mapping

from serve_apps.engines.carriers.carrier import Carrier
from serve_apps.engines.carriers.deltas import Deltas
from serve_apps.engines.carriers.folders import Folders
from serve_apps.engines.carriers.object_store import ObjectStore

STORED: Mapping[str, type[Carrier]] = {
    "object store": ObjectStore,
    "deltas": Deltas,
    "folders": Folders,
}

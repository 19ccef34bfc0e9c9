"""The carriers: `LIVE` into a running engine, `DIRECT` from the trainer's process, `STORED` from stored files.

An engine takes the first that carries a version.
"""

from collections.abc import Mapping

from schemas.weights import WeightsCarrier
from serve_apps.engines.carriers.carrier import Carrier, LiveCarrier
from serve_apps.engines.carriers.collective import Collective
from serve_apps.engines.carriers.deltas import Deltas
from serve_apps.engines.carriers.folders import Folders
from serve_apps.engines.carriers.object_store import ObjectStore
from serve_apps.engines.carriers.shared_memory import SharedMemory

LIVE: Mapping[WeightsCarrier, type[LiveCarrier]] = {
    WeightsCarrier.COLLECTIVE: Collective,
}
DIRECT: Mapping[WeightsCarrier, type[Carrier]] = {
    WeightsCarrier.SHARED_MEMORY: SharedMemory,
}
STORED: Mapping[str, type[Carrier]] = {
    "object store": ObjectStore,
    "deltas": Deltas,
    "folders": Folders,
}

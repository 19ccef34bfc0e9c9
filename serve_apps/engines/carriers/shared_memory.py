"""`SharedMemory`: versions that the trainer on this host has in its memory (storage/weights/shared_versions.py).

SGLang reads the files through links, in a folder that the next engine removes if this one is killed.
"""

import os
from contextlib import ExitStack
from pathlib import Path

from schemas.weights import WeightsCarrier, WeightsPublished
from serve_apps.engines.carriers.carrier import WeightPlaces
from serve_apps.engines.engine_folder import EngineFolder
from storage.weights.handover import close_all, take
from storage.weights.shared_versions import handover_name
from storage.weights.stored_version import verify

LINKS = "weights"
"""Folder of the links, within the engine's folder."""


class SharedMemory:
    """See `Carrier`."""

    def __init__(self, places: WeightPlaces) -> None:
        self._run = places.run

    def carries(self, published: WeightsPublished) -> bool:
        return published.carrier is WeightsCarrier.SHARED_MEMORY

    def prepare(self, published: WeightsPublished, held: ExitStack) -> Path | None:
        files = take(handover_name(self._run, published.version, published.digest))
        if files is None:
            return None
        held.callback(close_all, files.values())
        room = EngineFolder()
        held.callback(room.remove)
        folder = room.path / LINKS
        folder.mkdir()
        for name, descriptor in files.items():
            (folder / name).symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
        verify(folder, published.digest)
        return folder

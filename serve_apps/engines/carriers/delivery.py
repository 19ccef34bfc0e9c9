"""`Delivery`: brings the weight versions that an engine loads to its host."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec.structs import replace

from schemas.doc import doc
from schemas.errors import WeightsDamaged
from schemas.weights import WeightsPublished
from serve_apps.engines.carriers.carrier import WeightPlaces
from serve_apps.engines.carriers.registry import STORED
from storage.folders.places import is_remote, local_path, parent_of
from storage.weights.store import WeightStore

POLL_S = 0.2
"""Seconds between checks for missing files."""


class Update(NamedTuple):
    """A version that an engine can load."""

    folder: Annotated[Path, doc("Whole Hugging Face folder on this host, with the published digest.")]
    published: WeightsPublished


class Delivery:
    """The carriers of one engine."""

    def __init__(self, places: WeightPlaces) -> None:
        self._places = places
        self._stored = [carrier(places) for carrier in STORED.values()]

    async def prepare(self, published: WeightsPublished, held: ExitStack, *, wait_s: float) -> Update:
        """Bring a version here, where it stays while `held` is open.

        wait_s: how long to wait for its files, because a trainer that takes over writes a missing newest version again.
        Raises WeightsDamaged, StoreUnavailable, NoSpace.
        """
        stored = replace(published, url=await self._find(published, wait_s))
        carrier = next(carrier for carrier in self._stored if carrier.carries(stored))
        return Update(await asyncio.to_thread(carrier.prepare, stored, held), published)

    async def _find(self, published: WeightsPublished, wait_s: float) -> str:
        """Return the path or URL of a version: the published one, or one from this run's weight store if the run was
        restored or the version was written again.
        """
        store, end = WeightStore(self._places.url or parent_of(published.url)[0]), time.monotonic() + wait_s
        while is_remote(published.url) or not local_path(published.url).is_dir():
            try:
                return await asyncio.to_thread(store.folder, published.version, published.digest)
            except WeightsDamaged:
                if time.monotonic() >= end:
                    raise
            await asyncio.sleep(POLL_S)
        return published.url

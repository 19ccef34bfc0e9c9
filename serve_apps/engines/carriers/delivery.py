"""`Delivery`: brings the weight versions that an engine loads to its host."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec.structs import replace

from schemas.doc import doc
from schemas.errors import DeadlineExceeded, NoSpace, WeightsDamaged
from schemas.transfers import TransferBegun
from schemas.weights import WeightsCarrier, WeightsPublished
from serve_apps.engines.carriers.carrier import Carrier, LiveCarrier, WeightPlaces
from serve_apps.engines.carriers.registry import DIRECT, STORED
from storage.folders.places import is_remote, local_path, parent_of
from storage.weights.store import WeightStore

log = logging.getLogger(__name__)
POLL_S = 0.2
"""Seconds between checks for missing files."""
FAILURES = 2
"""Failures in a row after which an engine takes the files instead."""


class Update(NamedTuple):
    """A version that an engine can load."""

    folder: Annotated[Path, doc("Whole Hugging Face folder on this host, with the published digest.")]
    published: WeightsPublished
    carrier: WeightsCarrier


class Broadcast(NamedTuple):
    """A version that an engine can receive as a member of a group."""

    group: TransferBegun
    published: WeightsPublished
    carrier: WeightsCarrier


class Delivery:
    """The carriers of one engine. Stored files are the last of them, and always there.

    live: how the engine receives versions without files, if it can.
    """

    def __init__(self, places: WeightPlaces, live: Mapping[WeightsCarrier, LiveCarrier] | None = None) -> None:
        self._places, self.failures, self._live = places, places.failures, live or {}
        self._direct = {name: carrier(places) for name, carrier in DIRECT.items()}
        self._stored = [carrier(places) for carrier in STORED.values()]

    async def prepare(
        self, published: WeightsPublished, held: ExitStack, *, wait_s: float, is_update: bool = False
    ) -> Update | Broadcast:
        """Bring a version here, where it stays while `held` is open, or find a group in which the engine receives it.

        is_update: whether the engine runs an earlier version, with which it generates meanwhile. Its first version
        comes from files, which are there at once. Raises as `bring`.
        """
        for name, carrier in self._live.items() if is_update else ():
            if self.failures[name] < FAILURES and carrier.carries(published):
                try:
                    return Broadcast(await carrier.prepare(published), published, name)
                except DeadlineExceeded as error:
                    self.fail(name, published, str(error))
        return await self.bring(published, held, wait_s=wait_s)

    def fail(self, name: WeightsCarrier, published: WeightsPublished, reason: str) -> None:
        """Count and log a failure of a carrier."""
        self.failures[name] += 1
        text = "weight version %d does not come by %s, so its files are read: %s"
        log.warning(text, published.version, name, reason)

    async def bring(self, published: WeightsPublished, held: ExitStack, *, wait_s: float) -> Update:
        """Bring a version here, where it stays while `held` is open.

        wait_s: how long to wait for its files, because a trainer that takes over writes a missing newest version again.
        Raises WeightsDamaged, StoreUnavailable, NoSpace.
        """
        for name, carrier in self._direct.items():
            if self.failures[name] < FAILURES and carrier.carries(published):
                folder = await asyncio.to_thread(self._try, name, carrier, published, held)
                if folder is not None:
                    return Update(folder, published, name)
        stored = replace(published, url=await self._find(published, wait_s))
        last = next(carrier for carrier in self._stored if carrier.carries(stored))
        folder = await asyncio.to_thread(last.prepare, stored, held)
        assert folder is not None, "stored versions are there, or an error says why not"
        return Update(folder, published, WeightsCarrier.FILES)

    def _try(self, name: WeightsCarrier, carrier: Carrier, published: WeightsPublished, held: ExitStack) -> Path | None:
        """Return the folder by one carrier; None if it does not carry the version, or fails."""
        try:
            with ExitStack() as attempt:
                folder = carrier.prepare(published, attempt)
                held.push(attempt.pop_all())
            return folder
        except (WeightsDamaged, NoSpace, OSError) as error:
            self.fail(name, published, str(error))  # the error itself would keep the files mapped
            return None

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

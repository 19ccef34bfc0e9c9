"""Seconds until a version's checked files are on an engine's host: from the trainer's memory, and from stored files.

SGLang then loads the same files in all cases. The version is the second of two whose bf16 values differ in one of a
hundred; everything is in the page cache, as on one machine. Offering a version is the trainer's copy of it to memory.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.figure import Better, Figure
from schemas.weights import WeightsCarrier, WeightsPublished
from serve_apps.engines.carriers.carrier import Carrier, WeightPlaces
from serve_apps.engines.carriers.deltas import Deltas
from serve_apps.engines.carriers.folders import Folders
from serve_apps.engines.carriers.shared_memory import SharedMemory
from storage.weights.delta_rule import DeltaRule
from storage.weights.shards import TensorBytes
from storage.weights.shared_versions import SharedVersions
from storage.weights.store import WeightStore

MEGABYTES = 256
TENSORS = 16
ROUNDS = 5


def measure() -> list[Figure]:
    """Return the ratios of one process in which the ways take turns."""
    with tempfile.TemporaryDirectory() as folder:
        return _measure(Path(folder))


def _measure(root: Path) -> list[Figure]:
    run = f"benchmark-{os.getpid()}"
    offering = SharedVersions(run, lambda version: True)
    whole = WeightStore(str(root / "whole"), durable=False, offering=offering)
    deltas = WeightStore(str(root / "deltas"), durable=False, deltas=DeltaRule(full_every=50))
    for version, tensors in enumerate(_versions()):
        parent = version - 1 if version else None
        manifest = whole.write(version, tensors, parent)
        deltas.write(version, tensors, parent)

    def published(store: WeightStore) -> WeightsPublished:
        return WeightsPublished(
            version=1, parent=0, url=store.folder(1), digest=manifest.digest, bytes=manifest.bytes,
            carrier=WeightsCarrier.SHARED_MEMORY,
        )  # fmt: skip

    def taking(carrier: Callable[[WeightPlaces], Carrier], store: WeightStore) -> Callable[[], None]:
        rounds = iter(range(100))

        def take() -> None:
            copies = root / f"copies-{next(rounds)}"  # as on a host that has the version before
            with ExitStack() as held:
                places = WeightPlaces(copies=str(copies), run=run)
                assert carrier(places).prepare(published(store), held) is not None

        return take

    def offer() -> None:
        other = SharedVersions(f"{run}-offer", lambda version: True)
        other.offer(whole.folder(1), manifest)
        assert other.carrier(1, manifest.digest) is WeightsCarrier.SHARED_MEMORY
        other.retire(None)

    source, target = bytearray(manifest.bytes), bytearray(manifest.bytes)

    def copy() -> None:
        target[:] = source

    memory, files, delta, offered, copied = _best(
        taking(SharedMemory, whole), taking(Folders, whole), taking(Deltas, deltas), offer, copy
    )
    whole.retire()
    size = f"{manifest.bytes / 1e6:.0f} MB of bf16 in {TENSORS} tensors"
    return [
        Figure(
            name="take a version from memory / from its files", value=memory / files, unit="x", better=Better.LOWER,
            note=f"{size}, sha256 of all bytes in both; {memory:.3f} s and {files:.3f} s",
        ),
        Figure(
            name="take a version from memory / from deltas", value=memory / delta, unit="x", better=Better.LOWER,
            note=f"the whole copy of a full version and one delta: {delta:.3f} s",
        ),
        Figure(
            name="offer a version in memory / memcpy", value=offered / copied, unit="x", better=Better.LOWER,
            note=f"{offered:.3f} s and {copied:.3f} s, into pages that exist",
        ),
    ]  # fmt: skip


def _versions() -> list[list[TensorBytes]]:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1 << 16, MEGABYTES * 500_000, np.uint16)
    changed = values.copy()
    changed[rng.integers(0, values.size, values.size // 100)] ^= 1
    return [
        [(f"t{number}", "BF16", (part.size,), part.tobytes()) for number, part in enumerate(np.split(version, TENSORS))]
        for version in (values, changed)
    ]


def _best(*works: Callable[[], None]) -> list[float]:
    """Return the seconds of each, the best of the rounds."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        for work, times in zip(works, seconds, strict=True):
            begun = time.perf_counter()
            work()
            times.append(time.perf_counter() - begun)
    return [min(times) for times in seconds]

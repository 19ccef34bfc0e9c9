"""Seconds to take a version by a collective operation, against a memcpy of the model and SGLang's load.

A real SGLang engine on the CPU and the trainer's sender process, over gloo on one host. SGLang's load is
`update_weights` from the same files, which are in the page cache. Receiving includes forming the group, and sha256 of
each tensor. They take turns, and the best of each counts. Gloo alone broadcasts the same bytes between two processes
whose memory is ready, and sha256 is that of one thread: what no receiver that uses them can be faster than.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch.distributed
from torch import multiprocessing

from benchmarks.figure import Better, Figure
from serve_apps.engines.sglang_engine import SglangEngine
from slime_events.core.config.engine import EngineSettings
from storage.weights.broadcast import STREAM_BYTES
from tests.engine import tiny_model
from tests.engine.broadcasts import Stored

SIZES = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 6, "num_attention_heads": 8}
TURNS = 5
START_S = 300.0


class Seconds(NamedTuple):
    """The best of the turns, for all bytes of a version."""

    received: float
    loaded: float
    copied: float
    hashed: float


def measure() -> list[Figure]:
    """Return the ratio, and gloo's own."""
    with tempfile.TemporaryDirectory() as folder:
        size, best = asyncio.run(_measure(Path(folder)))
        sent = _gloo_alone(size, Path(folder) / "gloo")
    least = best.copied + best.loaded
    return [
        Figure(
            name="receive a version / memcpy + SGLang's load", value=best.received / least, unit="x", target=1.3,
            better=Better.LOWER,
            note=f"{size / 1e6:.0f} MB over gloo: {best.received:.3f} s; memcpy {best.copied:.3f} s, load "
            f"{best.loaded:.3f} s",
        ),
        Figure(
            name="gloo alone / memcpy + SGLang's load", value=sent / least, unit="x", better=Better.LOWER,
            note=f"broadcast to another process: {sent:.3f} s, {size / sent / 1e9:.1f} GB/s; sha256 in one thread "
            f"{best.hashed:.3f} s",
        ),
    ]  # fmt: skip


async def _measure(root: Path) -> tuple[int, Seconds]:
    """Return the bytes of a version, and the seconds of each part."""
    bases = [tiny_model.write(root / f"m{seed}", seed, **SIZES) for seed in range(2)]
    stored = [Stored(root / f"s{seed}", bases[0], bases[seed], seed + 1) for seed in range(2)]
    size = sum(path.stat().st_size for path in Path(stored[0].folder).glob("*.safetensors"))
    engine = SglangEngine(EngineSettings(hf_checkpoint=str(bases[0])))
    await engine.start(START_S)
    turns = list[Seconds]()
    try:
        source, target = bytearray(size), bytearray(size)
        for _ in range(TURNS):
            async with stored[1].sent() as sent:
                begun = time.perf_counter()
                reasons = await sent.receive(engine)
                received = time.perf_counter() - begun
            if reasons != (None, ""):
                raise RuntimeError(f"the version was not received: {reasons}")
            loaded = await engine.update_weights(stored[0].folder, stored[0].version)
            begun = time.perf_counter()
            target[:] = source
            copied = time.perf_counter() - begun
            begun = time.perf_counter()
            hashlib.sha256(source).hexdigest()
            turns.append(Seconds(received, loaded, copied, time.perf_counter() - begun))
    finally:
        await engine.stop()
    return size, Seconds(*map(min, zip(*turns, strict=True)))


def _gloo_alone(size: int, folder: Path) -> float:
    """Return the seconds of the best broadcast between two processes."""
    folder.mkdir()
    multiprocessing.spawn(_broadcast, args=(size, str(folder)), nprocs=2)  # type: ignore[no-untyped-call]
    return min(float(line) for line in (folder / "seconds").read_text().split())


def _broadcast(rank: int, size: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    parts = torch.ones(size, dtype=torch.uint8).split(STREAM_BYTES)
    for _ in range(TURNS):
        torch.distributed.barrier()
        begun = time.perf_counter()
        for work in [torch.distributed.broadcast(part, src=0, async_op=True) for part in parts]:
            work.wait()
        if rank == 1:
            with (Path(folder) / "seconds").open("a") as file:
                file.write(f"{time.perf_counter() - begun}\n")
    torch.distributed.destroy_process_group()

"""Seconds to take a version by a collective operation, against a memcpy of the model and SGLang's load.

A real SGLang engine on the CPU and the trainer's sender process, over gloo on one host. SGLang's load is
`update_weights` from the same files, which are in the page cache. Receiving includes forming the group, and sha256 of
each tensor. Both take turns, and the best of each counts.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.figure import Better, Figure
from serve_apps.engines.sglang_engine import SglangEngine
from slime_events.core.config.engine import EngineSettings
from tests.engine import tiny_model
from tests.engine.broadcasts import Stored

SIZES = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 6, "num_attention_heads": 8}
TURNS = 5
START_S = 300.0


def measure() -> list[Figure]:
    """Return the ratio."""
    with tempfile.TemporaryDirectory() as folder:
        size, received, loaded, copied = asyncio.run(_measure(Path(folder)))
    return [
        Figure(
            name="receive a version / memcpy + SGLang's load", value=received / (copied + loaded), unit="x", target=1.3,
            better=Better.LOWER,
            note=f"{size / 1e6:.0f} MB over gloo: {received:.3f} s; memcpy {copied:.3f} s, load {loaded:.3f} s",
        )
    ]  # fmt: skip


async def _measure(root: Path) -> tuple[int, float, float, float]:
    """Return the bytes of a version, and the seconds to receive it, to load it from files, and to copy the bytes."""
    bases = [tiny_model.write(root / f"m{seed}", seed, **SIZES) for seed in range(2)]
    stored = [Stored(root / f"s{seed}", bases[0], bases[seed], seed + 1) for seed in range(2)]
    size = sum(path.stat().st_size for path in Path(stored[0].folder).glob("*.safetensors"))
    engine = SglangEngine(EngineSettings(hf_checkpoint=str(bases[0])))
    await engine.start(START_S)
    received, loaded, copied = [], [], []
    try:
        source, target = bytearray(size), bytearray(size)
        for _ in range(TURNS):
            async with stored[1].sent() as sent:
                begun = time.perf_counter()
                reasons = await sent.receive(engine)
                received.append(time.perf_counter() - begun)
            if reasons != (None, ""):
                raise RuntimeError(f"the version was not received: {reasons}")
            loaded.append(await engine.update_weights(stored[0].folder, stored[0].version))
            begun = time.perf_counter()
            target[:] = source
            copied.append(time.perf_counter() - begun)
    finally:
        await engine.stop()
    return size, min(received), min(loaded), min(copied)

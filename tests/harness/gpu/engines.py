"""SGLang on this device: weights by each carrier into a running engine, a rest, and two engines beside each other."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import torch

from serve_apps.engines.carriers.carrier import WeightPlaces
from serve_apps.engines.carriers.delivery import Delivery
from serve_apps.engines.sglang_engine import SglangEngine
from slime_events.core.config.engine import EngineSettings
from storage.weights.files import open_checkpoint
from storage.weights.shared_versions import SharedVersions
from storage.weights.store import WeightStore
from tests import made
from tests.engine import tiny_model
from tests.engine.broadcasts import Stored
from tests.engine.contract import collect, request
from tests.harness.gpu.report import Row
from tests.harness.gpu.scene import GIB, Scene

START_S = 400.0
"""The first start on a GPU compiles kernels."""
TOKENS = 100
NOT_HERE = "SGLang is not installed here"
Answer = tuple[bytes, bytes]


def look_carriers(scene: Scene) -> None:
    """Give an engine the same version by files, memory and a collective: it must answer alike, and rest in between."""
    asyncio.run(_carriers(scene)) if _is_installed() else Row("carriers", NOT_HERE).say()


def look_two(scene: Scene) -> None:
    """Run two engines beside each other, each on a GPU of its own, and compare what they answer."""
    gpus = torch.cuda.device_count() if scene.on_gpu else 2
    if not _is_installed():
        Row("two engines", NOT_HERE).say()
    elif gpus < 2:
        Row("two engines", f"not looked at: they need two GPUs, and this machine has {gpus}").say()
    else:
        asyncio.run(_two(scene))


def _is_installed() -> bool:
    return importlib.util.find_spec("sglang") is not None


@contextlib.asynccontextmanager
async def _engine(scene: Scene, folder: Path, gpu: int = 0) -> AsyncIterator[SglangEngine]:
    """Start an engine on one GPU, with the memory saver that `--offload-rollout` asks for."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if scene.on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    try:
        settings = EngineSettings(
            hf_checkpoint=str(folder), device=scene.device, colocate=True, offload_train=True, offload_rollout=True
        )  # type: ignore[arg-type]  # a scene's device is a word
        engine = SglangEngine(settings, log=scene.folder / f"sglang-{gpu}.log")
        await engine.start(START_S)
    finally:
        if before is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
    try:
        yield engine
    finally:
        await engine.stop()


async def _answer(engine: SglangEngine) -> Answer:
    """Return tokens and log-probs of a request."""
    response = await collect(engine, request(5, new=TOKENS, temperature=0.0))
    return response.tokens.tobytes(), response.log_probs.tobytes()


async def _carriers(scene: Scene) -> None:
    base, other = (tiny_model.write(scene.folder / f"engine-{seed}", seed) for seed in (0, 1))
    async with _engine(scene, base) as engine:
        first, expected = await _answer(engine), b""
        ways: dict[str, Callable[[SglangEngine, Path, Path, Path], Awaitable[None]]] = {
            "files": _by_files,
            "shared memory": _by_memory,
            "a collective operation": _by_group,
        }
        for name, way in ways.items():
            folder = scene.folder / name.replace(" ", "-")
            begun = time.perf_counter()
            try:
                await way(engine, folder, base, other)
            except Exception as error:
                Row.failed(f"weights by {name}", error).say()
                continue
            seconds, answer = time.perf_counter() - begun, await _answer(engine)
            expected = expected or answer[0]
            alike = "the tokens of files" if answer[0] == expected else "other tokens than by files"
            seen = alike if answer[0] != first[0] else "no change: the engine answers as before"
            Row(f"weights by {name}", f"{engine.group_backend}; {seen}", {"update, s": seconds}).say()
            await engine.update_weights(str(base), engine.version + 1)
        await _rest(scene, engine, base)


async def _by_files(engine: SglangEngine, folder: Path, base: Path, other: Path) -> None:
    await engine.update_weights(Stored(folder, base, other, engine.version + 1).folder, engine.version + 1)


async def _by_memory(engine: SglangEngine, folder: Path, base: Path, other: Path) -> None:
    run, version = f"gpu-look-{os.getpid()}", engine.version + 1
    store = WeightStore(str(folder), base, durable=False, offering=SharedVersions(run, lambda _: True))
    tensors = [(name, *tensor) for name, tensor in open_checkpoint(other).items()]
    manifest = store.write(version, tensors, version - 1)
    carrier = store.carrier(version, manifest.digest)
    published = made.published(version, version - 1, url=store.folder(version), digest=manifest.digest, carrier=carrier)
    with contextlib.ExitStack() as held:
        update = await Delivery(WeightPlaces(run=run)).bring(published, held, wait_s=0.0)
        if update.carrier is not carrier:
            raise RuntimeError(f"it came by {update.carrier.value}")
        await engine.update_weights(str(update.folder), version)


async def _by_group(engine: SglangEngine, folder: Path, base: Path, other: Path) -> None:
    stored = Stored(folder, base, other, engine.version + 1)
    async with stored.sent(backend=engine.group_backend) as sent:
        reasons = await sent.receive(engine)
    if reasons != (None, ""):
        raise RuntimeError(f"engine: {reasons[0]}; sender: {reasons[1]}")


async def _rest(scene: Scene, engine: SglangEngine, base: Path) -> None:
    """Say what an engine that rests gives back, and whether it answers alike afterwards."""
    before, awake = await _answer(engine), _device(scene)
    begun = time.perf_counter()
    await engine.rest()
    seconds, resting = time.perf_counter() - begun, _device(scene)
    begun = time.perf_counter()
    await engine.wake()
    await engine.update_weights(str(base), engine.version + 1)
    woken = time.perf_counter() - begun
    alike = "the same answer" if await _answer(engine) == before else "another answer"
    figures: dict[str, float | int | str] = {"rest, s": seconds, "wake with weights, s": woken}
    if scene.on_gpu:
        figures |= {"awake, GiB": awake, "resting, GiB": resting}
    Row("an engine that rests", alike, figures).say()


def _device(scene: Scene) -> float:
    """Return the GiB that are in use on the whole GPU."""
    if not scene.on_gpu:
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / GIB


async def _two(scene: Scene) -> None:
    base, other = (tiny_model.write(scene.folder / f"engine-{seed}", seed) for seed in (0, 1))
    stored = Stored(scene.folder / "two", base, other, 1)
    async with _engine(scene, base, 0) as first, _engine(scene, base, 1) as second:
        engines = (first, second)
        await _alike("two engines", engines)
        begun = time.perf_counter()
        async with stored.sent(engines=2, backend=first.group_backend) as sent:
            received = [
                engine.receive_weights(sent.group, rank, stored.digest) for rank, engine in enumerate(engines, 1)
            ]
            reasons = [*await asyncio.gather(*received), await sent.over()]
        seconds = time.perf_counter() - begun
        seen = "; ".join(reason for reason in reasons if reason) or "both received it"
        Row("two engines in one group", f"{first.group_backend}; {seen}", {"update, s": seconds}).say()
        await _alike("two engines, after the update", engines)


async def _alike(name: str, engines: Sequence[SglangEngine]) -> None:
    """Say whether engines answer alike."""
    begun = time.perf_counter()
    answers = await asyncio.gather(*(_answer(engine) for engine in engines for _ in range(4)))
    seconds = time.perf_counter() - begun
    alike = "all answers alike" if len({tokens for tokens, _ in answers}) == 1 else "they differ"
    Row(name, alike, {"answers of both, s": seconds, "tokens": TOKENS * len(answers)}).say()

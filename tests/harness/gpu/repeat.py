"""Whether a GPU gives the same bits twice: steps in two processes, a resumed checkpoint, weight files."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from actors.trainer.local_ranks import LocalRanks, local_ranks
from slime_events.core.training.train_batch import TrainBatch
from storage.weights.store import WeightStore
from storage.weights.stored_version import digest_of, read, verify
from tests.harness.gpu.report import Row
from tests.harness.gpu.scene import LARGE, MIDDLE, Scene, lengths_to, make_batch, whole_settings

STEPS = 4
SAVED = 2
"""Steps before the checkpoint."""
WAYS: dict[str, dict[str, Any]] = {
    "bfloat16": {"bf16": True},
    "bfloat16, --deterministic-mode": {"bf16": True, "deterministic_mode": True},
    "float32": {"bf16": False},
}


def batches() -> list[TrainBatch]:
    """Return the batch of each step."""
    return [make_batch(lengths_to(4096, 1024, step), MIDDLE["vocab_size"], step) for step in range(STEPS)]


async def digests(ranks: LocalRanks, some: list[TrainBatch]) -> list[str]:
    """Make the steps; return the digest of weights and optimizer after each."""
    after_steps = []
    for batch in some:
        result = await ranks.train(batch)
        weights = digest_of(await ranks.export_weights())
        after_steps.append(hashlib.sha256((weights + result.optimizer_digest).encode()).hexdigest())
    return after_steps


async def in_a_process(model: Path, **settings: Any) -> list[str]:
    """Return the digests of all steps, from a new process."""
    async with local_ranks(whole_settings(model, **settings)) as ranks:
        return await digests(ranks, batches())


def alike(first: list[str], second: list[str]) -> int:
    """Return the number of steps before the first that differs."""
    same = [mine == other for mine, other in zip(first, second, strict=True)]
    return same.index(False) if False in same else len(same)


async def twice(scene: Scene, name: str, model: Path, **more: Any) -> None:
    """Train in one way, in two processes."""
    settings = WAYS[name] | more
    name = f"{name}, {model.name}"
    try:
        first, second = [await in_a_process(model, **settings) for _ in range(2)]
    except Exception as error:
        Row.failed(f"twice, {name}", error).say()
        return
    same = alike(first, second)
    seen = "the same bits" if same == STEPS else f"other bits from step {same} on"
    Row(f"twice, {name}", seen, {"steps": STEPS, "steps alike": same}).say()


def look_twice(scene: Scene) -> None:
    """Train in every way, side by side on a GPU."""
    asyncio.run(all_ways(scene, scene.model("middle")))


def look_twice_experts(scene: Scene) -> None:
    """Train a mixture of experts in every way; groups of rows are bfloat16's alone."""
    asyncio.run(all_ways(scene, scene.model("mixture"), megatron={"moe_grouped_gemm": True}))


async def all_ways(scene: Scene, model: Path, **more: Any) -> None:
    """Train a model in every way, with more settings."""
    if scene.on_gpu:
        await asyncio.gather(*(twice(scene, name, model, **more) for name in WAYS))
    else:
        await twice(scene, "float32", model, **more)


def look_twice_large(scene: Scene) -> None:
    """Train a model of 0.5B on 8192 tokens a step, where kernels have more ways to split a sum."""
    for name in ("bfloat16", "bfloat16, --deterministic-mode") if scene.on_gpu else ("float32",):
        try:
            asyncio.run(_twice_large(scene, name))
        except Exception as error:
            Row.failed(f"twice, 0.5B, {name}", error).say()


async def _twice_large(scene: Scene, name: str) -> None:
    model, tokens = scene.model("large"), 8192 if scene.on_gpu else 512
    vocabulary = (LARGE if scene.on_gpu else MIDDLE)["vocab_size"]
    some = [make_batch(lengths_to(tokens, tokens // 4, step), vocabulary, step) for step in range(STEPS)]

    async def digests_of_run() -> list[str]:
        async with local_ranks(whole_settings(model, **WAYS[name])) as ranks:
            return await digests(ranks, some)

    same = alike(*await asyncio.gather(digests_of_run(), digests_of_run()))
    seen = "the same bits" if same == STEPS else f"other bits from step {same} on"
    Row(f"twice, 0.5B, {tokens} tokens a step, {name}", seen, {"steps": STEPS, "steps alike": same}).say()


def look_resumed(scene: Scene) -> None:
    """Save after two steps and continue; load and continue in another process; compare the last weight files."""
    for name in ("bfloat16, --deterministic-mode", "bfloat16") if scene.on_gpu else ("float32",):
        try:
            asyncio.run(resumed(scene, name))
        except Exception as error:
            Row.failed(f"checkpoint, {name}", error).say()


async def resumed(scene: Scene, name: str) -> None:
    """Resume in one way of training."""
    model, settings, some = scene.model("middle"), WAYS[name], batches()
    folder = scene.folder / f"checkpoint-{settings.get('deterministic_mode', False)}"
    async with local_ranks(whole_settings(model, **settings)) as ranks:
        await ranks.save_checkpoint(f"{folder}-new")
        begun = await digests(ranks, some[:SAVED])
        await ranks.save_checkpoint(str(folder))
        there = await state(ranks)
        straight = await digests(ranks, some[SAVED:])
        await ranks.load_checkpoint(str(folder))
        loaded = await state(ranks)
        again = await digests(ranks, some[SAVED:])
        seen = f"loaded state {'as saved' if loaded == there else 'OTHER than saved'}"
        figures: dict[str, float | int | str] = {"steps": STEPS - SAVED, "steps alike": alike(straight, again)}
        Row(f"checkpoint, the same process, {name}", seen, figures).say()
        await weight_files(scene, ranks, name)
    async with local_ranks(whole_settings(model, **settings)) as ranks:
        await ranks.load_checkpoint(f"{folder}-new")
        figures = {"steps": SAVED, "steps alike": alike(begun, await digests(ranks, some[:SAVED]))}
        Row(f"checkpoint from before the first step, another process, {name}", "loaded", figures).say()
        await ranks.load_checkpoint(str(folder))
        loaded = await state(ranks)
        other = await digests(ranks, some[SAVED:])
    seen = f"loaded state {'as saved' if loaded == there else 'OTHER than saved'}"
    figures = {"steps": STEPS - SAVED, "steps alike": alike(straight, other)}
    Row(f"checkpoint, another process, {name}", seen, figures).say()


async def state(ranks: LocalRanks) -> tuple[str, str]:
    """Return the digests of weights and optimizer as they are."""
    return digest_of(await ranks.export_weights()), await ranks.optimizer_digest()


async def weight_files(scene: Scene, ranks: LocalRanks, name: str) -> None:
    """Write the weights as a run does, read them and load them into the rank: no bit may move."""
    tensors = await ranks.export_weights()
    store = WeightStore(str(scene.folder / f"weights-{hashlib.sha256(name.encode()).hexdigest()[:8]}"))
    manifest = store.write(1, tensors, None)
    folder = store.folder(1)
    verify(folder, digest_of(tensors))
    kinds = {dtype for _, dtype, _, _ in tensors}
    before = await state(ranks)
    await ranks.load_weights(folder)
    same = await state(ranks) == before
    seen = f"the rank's own, {', '.join(sorted(kinds))}; loaded again: {'no bit moves' if same else 'OTHER state'}"
    Row(f"weight files, {name}", seen, {"tensors": len(read(folder)[1]), "digest": manifest.digest[:12]}).say()

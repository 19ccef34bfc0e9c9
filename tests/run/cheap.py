"""A launch with cheap parts: every role in this process, a scripted engine, a trainer that only counts.

The launcher, the conductor, the grader with its processes, the archivist and the NATS server are the real ones.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError

from actors.trainer.ranks import HeldWeights
from actors.trainer.trainer import Trainer
from actors.trainer.trainer_plan import TrainerPlan
from schemas.errors import TrainerError
from schemas.placements import PlacementPlanned
from serve_apps.engines.carriers.carrier import WeightPlaces
from serve_apps.engines.engine_weights import EngineWeights
from serve_apps.rollouts.rollout import ChunkRule
from serve_apps.rollouts.rollout_worker import EngineContext, InlineRewards, RolloutWorker
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.reward import RewardSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.planning.placement import GpuNode
from slime_events.core.run.join import join_run
from slime_events.core.run.run_address import RunAddress
from slime_events.core.training.train_batch import StepResult, TrainBatch
from slime_events.loop.training.pending_batches import PendingBatches
from storage.blobs import BlobStore
from storage.cancellation import end_all
from storage.group_commit import GroupCommit
from storage.payloads import fetch, offload_async
from storage.weights.shards import TensorBytes
from storage.weights.store import WeightStore
from tests.scripted_engine import Script, ScriptedEngine

END_S = 60.0
"""For all roles. One whose cancellation was lost is cancelled again after a while."""


@dataclass(slots=True)
class CountingRanks(HeldWeights):
    """The new weights are a digest of the old ones and the batch, in its order. fail_at: the step that breaks."""

    fail_at: int | None = None
    state: bytes = b"\0" * 32
    step: int = 0

    async def train(self, batch: TrainBatch) -> StepResult:
        if self.step == self.fail_at:
            raise TrainerError("rank 0 lost its device")
        self.step += 1
        digest = hashlib.sha256(self.state)
        for sample in batch.samples:
            digest.update(sample.tokens.tobytes() + struct.pack("<d", sample.reward))
        self.state = digest.digest()
        return StepResult({"train/loss": float(self.step)}, "0" * 64)

    async def export_weights(self) -> list[TensorBytes]:
        return [("w", "F32", (8,), memoryview(self.state))]

    async def optimizer_digest(self) -> str:
        return "0" * 64

    async def critic_digest(self) -> str:
        return ""

    async def save_checkpoint(self, folder: str) -> None:
        Path(folder).mkdir(parents=True)
        (Path(folder) / "state").write_bytes(self.state)

    async def load_checkpoint(self, folder: str) -> None:
        self.state = (Path(folder) / "state").read_bytes()

    async def reset(self) -> None:
        self.state, self.step = b"\0" * 32, 0


@dataclass(slots=True)
class Parts:
    """Define what the cheap roles do, and record what they have seen."""

    script: Script = field(default_factory=lambda: Script(chunk=4, seconds_per_chunk=0.01))
    ranks: CountingRanks = field(default_factory=CountingRanks)
    lease_s: float = 2.0
    gpus: tuple[int, ...] = ()
    """Of each machine, by Ray's count."""

    def trainer(self) -> Any:
        """Replace TrainerActor."""
        parts = self

        class ScriptedTrainer:
            async def run(self, address: RunAddress, settings: TrainSettings, peers: Any, *_: Any) -> int:
                await parts.ranks.reset()
                async with join_run(address, "trainer") as worker:
                    await worker.join({})
                    store = WeightStore(address.weights_url, base=settings.trainer.hf_checkpoint)
                    return await Trainer(
                        worker,
                        parts.ranks,
                        store,
                        PendingBatches(partial(fetch, blobs=BlobStore(address.blob_url)), temperature=1.0),
                        TrainerPlan(
                            settings.rollout.num_rollout or 0,
                            f"{address.folder}/checkpoints",
                            saves=settings.trainer.saves,
                        ),
                    ).run()

        return ScriptedTrainer

    async def engine(self, address: RunAddress, settings: EngineSettings, reward: RewardSettings) -> None:
        """Replace a Serve replica."""
        async with join_run(address, "engine") as worker:
            engine = ScriptedEngine(self.script)
            await engine.start(1.0)
            blobs = BlobStore(address.blob_url)
            async with GroupCommit(worker.log) as commit:
                await worker.join({})
                weights = EngineWeights(worker, engine, commit, places=WeightPlaces(address.weights_url))
                give, put = partial(fetch, blobs=blobs), partial(offload_async, blobs=blobs)
                rule = ChunkRule(settings.chunk, settings.chunk_s)
                await RolloutWorker(
                    EngineContext(worker, engine, commit, give, put, weights, rule),
                    settings.sglang_server_concurrency,
                    rewards=InlineRewards(reward, worker.log),
                    lease_s=self.lease_s,
                ).run()


class LocalCluster:
    """`Cluster` without Ray: actors are objects here, their calls tasks of this event loop."""

    def __init__(self, gpus: tuple[int, ...], *_: Any) -> None:
        self.nodes = [GpuNode(f"node{n}", f"10.0.0.{n}", count, count) for n, count in enumerate(gpus)]
        self.homes: list[GpuNode] = []
        self._loop = asyncio.get_event_loop()
        self._calls: list[concurrent.futures.Future[Any]] = []
        self.actors: list[_Handle] = []

    def start(self) -> None:
        """Nothing to start."""

    def place(self, planned: PlacementPlanned) -> None:
        """Nothing to reserve."""

    def actor(self, cls: type, name: str, *args: Any, **_: Any) -> Any:
        self.actors.append(_Handle(cls(*args), self))
        return self.actors[-1]

    def kill(self, actor: _Handle) -> None:
        """Kill it like kill -9 of its process: every waiter gets an error."""
        for call in actor.calls:
            call.cancel()

    def serve(self, apps: Sequence[Any], run: str) -> None:
        for app in apps:
            self.call(app)

    def stop(self) -> None:
        for call in self._calls:
            call.cancel()
        concurrent.futures.wait(self._calls, timeout=END_S)

    def call(self, coroutine: Any) -> concurrent.futures.Future[Any]:
        call = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._calls.append(call)
        return call


def lose(cluster: LocalCluster, role: str) -> None:
    """Lose the role's newest process, if there is one, like kill -9."""
    for actor in [actor for actor in cluster.actors if role in type(actor.target).__name__.lower()][-1:]:
        cluster.kill(actor)


class _Handle:
    def __init__(self, target: Any, cluster: LocalCluster) -> None:
        self.target, self.cluster = target, cluster
        self.calls: list[asyncio.Task[Any]] = []

    def __getattr__(self, method: str) -> _Method:
        return _Method(self, getattr(self.target, method))


@dataclass(frozen=True, slots=True)
class _Method:
    actor: _Handle
    function: Any

    def remote(self, *args: Any) -> _Ref:
        return _Ref(self.actor.cluster.call(self._run(*args)))

    async def _run(self, *args: Any) -> Any:
        """In a task of its own, so that its end can be distinguished from that of the run."""
        task = asyncio.ensure_future(self.function(*args))
        self.actor.calls.append(task)
        try:
            await asyncio.wait([task])
        finally:
            await end_all(task)  # before the NATS server stops, which a role that still writes would wait for
        if task.cancelled():
            raise RayActorError
        return task.result()


@dataclass(frozen=True, slots=True)
class _Ref:
    result: concurrent.futures.Future[Any]

    def future(self) -> concurrent.futures.Future[Any]:
        return self.result


@contextlib.contextmanager
def cheap_parts(parts: Parts) -> Any:
    """While inside, `Launch` uses them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slime_events.app.launch.run.Cluster", partial(LocalCluster, parts.gpus))
        patch.setattr("slime_events.app.launch.roles.TrainerActor", parts.trainer())
        patch.setattr("slime_events.app.launch.roles.HEAD_START_S", 0.0)  # here all share one process
        patch.setattr("actors.inbox_actor.yield_to_others", lambda nice: None)
        patch.setattr(
            "slime_events.app.launch.supervisor.READ_S", 0.01
        )  # cheap steps are over before a person looks twice
        patch.setattr(
            "serve_apps.deployment.rollout_app",
            lambda address, settings, reward, **_: parts.engine(address, settings, reward),
        )
        yield

"""A run that a client drives, in one process over one in-memory log: the real gateway, conductor and trainer, a
scripted engine, and ranks that compute with digests. The SDK's own client talks to it over HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tinker
import uvicorn

from actors.trainer.commanded import CommandedTrainer
from actors.trainer.trainer import Trainer
from actors.trainer.trainer_plan import TrainerPlan
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Sources
from serve_apps.http.tinker.answers import Answers
from serve_apps.http.tinker.app import tinker_app
from serve_apps.http.tinker.calls import Calls, Served
from slime_events.core.training.datums import Beginning, PassResult, TrainPass
from slime_events.core.training.train_batch import StepResult, TrainBatch
from slime_events.loop.commands.order import CommandOrder
from slime_events.loop.conductor.cycle import Policy
from slime_events.loop.training.pending_batches import PendingBatches
from storage.blobs import BlobStore
from storage.payloads import fetch
from storage.weights.store import WeightStore
from tests.simulation.parts import ScriptedRanks
from tests.simulation.roles import keep_all
from tests.simulation.simulation import Simulation, make_plan

VOCABULARY, LONGEST = 300, 64
PASS_S = 0.01
SKIPPED_RATE = 0.5
"""A learning rate that makes the norm of a gradient no number."""
SERVED = Served("/models/tiny", "tiny", "Tiny", VOCABULARY, LONGEST)


class DigestRanks(ScriptedRanks):
    """A token's log-prob and a step's weights follow from the weights and what is passed, in its order."""

    def __init__(self, seconds: float = 0.0, disk: dict[str, bytes] | None = None) -> None:
        super().__init__(seconds, disk)
        self.summed: list[str] = []
        self.passes = 0

    async def run_pass(self, pass_: TrainPass, *, backward: bool) -> PassResult:
        await asyncio.sleep(self._seconds)
        self.passes += 1
        if backward:
            self.summed.append(pass_.key)
        seed = int.from_bytes(self.weights[:4], "little")
        targets = np.concatenate([datum.targets for datum in pass_.datums]).astype(np.int64)
        log_probs = -((targets * 31 + seed) % 97 / 97).astype(np.float32)
        return PassResult(log_probs, float(-log_probs.sum()))

    async def train(self, batch: TrainBatch) -> StepResult:
        assert batch.commanded is not None
        self.trained.append(batch)
        if isinstance(update := batch.commanded.update, Beginning):
            if update.optimizer:
                await self.load_checkpoint(update.checkpoint)
            elif update.version is None:
                await self.reset()
            else:
                await self.load_weights(update.folder)
            return StepResult({"grad_norm": 0.0, "skipped": 0.0}, self.weights.hex())
        digest = hashlib.sha256(self.weights)
        for pass_ in batch.commanded.passes:
            digest.update(pass_.key.encode() + pass_.loss.encode())
        digest.update(repr(update).encode())
        self.weights, self.summed = digest.digest(), []
        skipped = float(update.learning_rate == SKIPPED_RATE)
        return StepResult({"grad_norm": 1.0, "skipped": skipped}, self.weights.hex())

    async def save_checkpoint(self, folder: str) -> None:
        Path(folder).mkdir(parents=True)
        await super().save_checkpoint(folder)


class DrivenSimulation(Simulation):
    """A simulation without prompts, whose trainer takes commands."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.blobs = BlobStore(str(folder / "blobs"))
        plan = make_plan(steps=more.pop("steps", 1000))
        policy = Policy(plan, keep_all, lambda raw, sizes: (), commands=CommandOrder())
        super().__init__(folder, plan, prompts=(), policy=policy, ranks=DigestRanks(PASS_S), deadline_s=1e6, **more)

    def _new_trainer(self, *, exact: bool = False) -> Trainer:
        return CommandedTrainer(
            self._worker("trainer"),
            self.ranks,
            WeightStore(str(self.folder / "weights"), durable=False),
            PendingBatches(partial(fetch, blobs=self.blobs), temperature=1.0),
            TrainerPlan(self.plan.steps, str(self.folder / "checkpoints"), exact=exact, on_demand=True),
            blobs=self.blobs,
        )


class TinkerGateway:
    """The gateway's routes on a port. kill ends it with all its connections; start brings another one up there."""

    def __init__(self, simulation: DrivenSimulation, folder: Path) -> None:
        self._simulation, self.sources = simulation, Sources(folder)
        self.key = f"tml-{self.sources.issue('test')}"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def app(self) -> Any:
        worker = self._simulation._worker("tinker")
        self.answers = Answers(worker, partial(fetch, blobs=self._simulation.blobs), attempts=2)
        calls = Calls(worker, SERVED, self.answers, self._simulation.blobs)
        return tinker_app(calls, self.sources, GatewaySettings())

    async def start(self) -> None:
        server = uvicorn.Server(uvicorn.Config(self.app, port=self.port, log_level="warning", lifespan="off"))
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._tasks = [asyncio.create_task(server._serve()), asyncio.create_task(self.answers.follow())]
        self._server = server
        while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
            await asyncio.sleep(0.01)

    async def kill(self) -> None:
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def client(self) -> tinker.ServiceClient:
        """The SDK's. To be made in a thread: it waits for answers."""
        return tinker.ServiceClient(base_url=self.url, api_key=self.key)


@contextlib.asynccontextmanager
async def scene(folder: Path, **more: Any) -> AsyncIterator[tuple[DrivenSimulation, TinkerGateway]]:
    """A run with an engine and a gateway."""
    async with DrivenSimulation(folder, **more) as simulation:
        simulation.start_engine()
        gateway = TinkerGateway(simulation, folder / "gateway")
        await gateway.start()
        try:
            yield simulation, gateway
        finally:
            await gateway.kill()


def datum(*targets: int, advantage: float | None = None) -> tinker.Datum:
    """One sequence whose targets these are."""
    inputs: dict[str, Any] = {"target_tokens": list(targets)}
    if advantage is None:
        inputs["weights"] = [1.0] * len(targets)
    else:
        inputs |= {"logprobs": [-0.5] * len(targets), "advantages": [advantage] * len(targets)}
    tokens = [1, *targets[:-1]]
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)

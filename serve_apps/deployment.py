"""The Ray Serve deployment of rollout engines: N replicas, each a competing consumer of the log around one engine."""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve._private import replica
from ray.util.placement_group import NODE_ID_LABEL_KEY

from schemas.devices import Side
from schemas.errors import EngineError, EngineLost, StorageError, reason_of
from schemas.placements import PlannedBundles
from schemas.weights import WeightsCarrier
from schemas.workers import WorkerLost
from serve_apps.engines.arguments import resolve_device
from serve_apps.engines.carriers.carrier import WeightPlaces
from serve_apps.engines.engine import Engine
from serve_apps.engines.engine_in_turns import EngineInTurns
from serve_apps.engines.engine_weights import EngineWeights
from serve_apps.engines.external.http_engine import HttpEngine
from serve_apps.engines.external.served_model import RunModel
from serve_apps.engines.limits import EngineLimits
from serve_apps.engines.sglang_engine import SglangEngine
from serve_apps.rollouts.answerer import MakerSetup
from serve_apps.rollouts.generate.custom import CustomGenerate
from serve_apps.rollouts.generate.function import GenerateSetup
from serve_apps.rollouts.inline_rewards import InlineRewards
from serve_apps.rollouts.makers import make_answerers
from serve_apps.rollouts.rollout import ChunkRule
from serve_apps.rollouts.rollout_worker import TAKE_LIMIT, EngineContext, RolloutWorker
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.reward import RewardSettings
from slime_events.core.devices.device_share import DeviceShare
from slime_events.core.planning.homes import MOVED, RAY_NODE, Home, Standing, at_home, standing_of
from slime_events.core.run.join import join_run
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import RunAddress
from slime_events.core.run.served_models import GROUP
from slime_events.core.run.shared_places import require_places
from slime_events.plugins.tokenizer import load_tokenizer
from storage.blobs import BlobStore
from storage.group_commit import GroupCommit
from storage.payloads import fetch, offload_async

START_DEADLINE_S = {"cpu": 600.0, "cuda": 1800.0}
"""On GPUs an engine compiles kernels for minutes at its first start, and several engines share the machine's cores."""
log = logging.getLogger(__name__)


class RolloutEngine:
    """A replica. Its work runs in its own task, which Serve does not see: `check_health` watches it."""

    def __init__(
        self,
        address: RunAddress,
        settings: EngineSettings,
        reward: RewardSettings,
        generate: GenerateSetup | None,
        home: Home | None = None,
        url: str | None = None,
        group: str = "",
        *_: object,
    ) -> None:
        """url: of a server that runs already, in place of an engine of its own. group: of the engine, if engines
        differ. Further arguments are not used.
        """
        self._url, self._group = url, group
        self._address, self._settings, self._reward, self._generate = address, settings, reward, generate
        self._home = home
        self._template = template_name(address, os.getppid())
        self._failures = Counter[WeightsCarrier]()
        listen_on_this_node()
        self._task = asyncio.get_event_loop().create_task(self._serve(), name="rollouts")

    async def check_health(self) -> None:
        """Raise EngineError if the work has failed. Serve then replaces the replica, and others get its requests."""
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise EngineError(f"the replica's work failed: {error}") from error

    async def _serve(self) -> None:
        """Serve rollouts until the run is over.

        A lost engine is replaced here, in the same process: Serve replaces a replica only at its third failed check,
        and by a new process. If an engine cannot be started at all, Serve handles it.
        """
        facts = {RAY_NODE: str(ray.get_runtime_context().get_node_id())}
        if self._home is not None:
            facts |= moved_here(self._home, *await asyncio.to_thread(whereabouts))
        facts |= {GROUP: self._group} if self._group else {}
        while True:
            async with join_run(self._address, "engine") as worker, contextlib.AsyncExitStack() as stack:
                async with loss_recorded(worker):
                    await asyncio.to_thread(require_places, self._address.shared)
                    engine, share = self._engine_of(worker), None
                    if self._settings.takes_turns:
                        share = await stack.enter_async_context(DeviceShare(worker, Side.ENGINES, engine).following())
                        if not await share.take():
                            return
                    begun = time.perf_counter()
                    await engine.start(START_DEADLINE_S["cuda" if self._url else resolve_device(self._settings)])
                try:
                    async with loss_recorded(worker), _ending(engine):
                        await worker.join({"engine": time.perf_counter() - begun}, facts)
                        await self._work(worker, engine, share)
                    return
                except EngineError as error:
                    log.warning("%s is lost and is replaced by another engine: %s", worker.id, error)

    def _engine_of(self, worker: Participant) -> Engine:
        """Return the engine of a worker, not yet started."""
        settings, name = self._settings, f"{self._address.run} {worker.id}"
        if self._url is not None:
            model = RunModel(settings.hf_checkpoint, settings.device)
            return HttpEngine(self._url, model, name=name, chunk=settings.chunk)
        log = Path(self._address.folder) / "logs" / f"sglang-{worker.id}.log"
        return SglangEngine(settings, log=log, template=self._template, name=name)

    async def _work(self, worker: Participant, engine: Engine, share: DeviceShare | None) -> None:
        """Make rollouts with one engine until the run is over. share: of devices that the trainer uses too."""
        address, settings, blobs = self._address, self._settings, BlobStore(self._address.blob_url)
        fetching, room = partial(fetch, blobs=blobs), settings.sglang_server_concurrency
        async with contextlib.AsyncExitStack() as stack:
            commit, custom = await stack.enter_async_context(GroupCommit(worker.log)), None
            if (setup := self._generate) is not None:
                custom = CustomGenerate(setup, load_tokenizer(setup.tokenizer), worker.log, fetching, room)
                stack.callback(custom.close)
            stack.callback((limits := EngineLimits.of(settings)).close)
            root = settings.update_weight_local_checkpoint_dir
            copies = root and str(Path(root) / address.run)
            places = WeightPlaces(address.weights_url, copies, "" if self._url else address.run, self._failures)
            more: dict[str, Any] = {"places": places, "hold_s": settings.eval_hold_seconds, "limits": limits}
            weights = (
                EngineInTurns(worker, engine, commit, share=share, **more)
                if share is not None
                else EngineWeights(worker, engine, commit, **more)
            )
            rule = ChunkRule(settings.chunk, settings.chunk_s)
            await RolloutWorker(
                EngineContext(worker, engine, commit, fetching, partial(offload_async, blobs=blobs), weights, rule),
                room,
                take_limit=TAKE_LIMIT if settings.replicas > 1 or self._group else room,
                answerers=make_answerers(MakerSetup(custom, settings)),
                rewards=InlineRewards(self._reward, worker.log),
                lease_s=settings.lease_s,
            ).run()


@contextlib.asynccontextmanager
async def _ending(engine: Engine) -> AsyncIterator[None]:
    """Stop the engine at the end of the block. Its worker.lost comes later, and says that its processes are gone."""
    try:
        yield
    finally:
        await engine.stop()


@contextlib.asynccontextmanager
async def loss_recorded(worker: Participant) -> AsyncIterator[None]:
    """Append an error inside the block as worker.lost, if the log answers, and raise it."""
    try:
        yield
    except Exception as error:  # any error ends the engine; it is raised again
        reason = reason_of(error)
        with contextlib.suppress(StorageError):
            requests = error.requests if isinstance(error, EngineLost) else ()
            await worker.append([WorkerLost(worker=worker.id, role=worker.role, reason=reason, requests=requests)])
        raise


def template_name(address: RunAddress, raylet: int) -> str:
    """Return the name of the process from which a run's engine hosts are forked. raylet: process id of this machine's
    part of Ray, with which the template ends.

    Two users of one Ray may have runs of the same name, and a resumed run has an environment of its own.
    """
    own = address.run, address.folder, address.nats.url, str(address.incarnation.number)
    return f"{hashlib.sha256(json.dumps(own).encode()).hexdigest()[:16]}-{raylet}"


def listen_on_this_node() -> None:
    """Make this replica accept Serve's calls only on the node's address in Ray, which is loopback by default.

    Serve itself would listen on every address of the machine. Call it in the replica, before it has begun.
    """
    listen, host = replica.add_port_to_grpc_server, ray.util.get_node_ip_address()
    host = f"[{host}]" if ":" in host else host

    def listen_there(server: object, address: str) -> int:
        return int(listen(server, address.replace("[::]", host)))

    replica.add_port_to_grpc_server = listen_there


def whereabouts() -> tuple[Home, list[Mapping[str, Any]]]:
    """Return the machine of this process, and Ray's rows of all machines."""
    return Home(str(ray.get_runtime_context().get_node_id()), str(ray.util.get_node_ip_address())), ray.nodes()


def moved_here(home: Home, here: Home, rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the fact that this engine is not at home, because its machine is lost; nothing if it is at home.

    rows: of `ray.nodes`. Raises EngineError if Ray has chosen another machine although its own is alive, so that Serve
    replaces it.
    """
    standing = standing_of(home, here.node, rows)
    if standing is Standing.MISPLACED:
        raise EngineError(f"Ray started an engine on {here.address}, and its place is on {home.address}")
    return {MOVED: f"it is on {here.address}, as {home.address} is lost"} if standing is Standing.MOVED else {}


def placement_options(bundle: PlannedBundles) -> dict[str, Any]:
    """Return the options of a deployment whose replicas each have a placement group with this one bundle.

    Serve cannot put a replica into a group that exists, so it makes one for each. On CPUs there is no group, as Ray
    counts nothing: a replica goes to its machine, and to another one if that is lost.
    """
    options: dict[str, Any] = {"ray_actor_options": {"num_cpus": bundle.cpus, "num_gpus": bundle.gpus}}
    if not bundle.gpus and len(bundle.nodes) == 1:
        options["ray_actor_options"] |= at_home(NODE_ID_LABEL_KEY, bundle.nodes[0], or_elsewhere=True)
    resources = {name: count for name, count in (("CPU", bundle.cpus), ("GPU", bundle.gpus)) if count}
    if resources:
        options |= {"placement_group_bundles": [resources], "placement_group_strategy": bundle.strategy.value}
    if resources and bundle.nodes:
        nodes = f"in({','.join(bundle.nodes)})"
        options["placement_group_bundle_label_selector"] = [{NODE_ID_LABEL_KEY: nodes}]
    return options


def rollout_app(
    address: RunAddress,
    settings: EngineSettings,
    reward: RewardSettings,
    *,
    bundle: PlannedBundles,
    home: Home | None = None,
    generate: GenerateSetup | None = None,
) -> serve.Application:
    """Return the application of the engines of a planned bundle, for Serve.

    `settings` are those of the bundle's group, if engines differ. `reward` is for the rewards that engines compute.
    `home` is their machine, if the bundle has one on CPUs. `generate` is the run's own generate function.
    """
    urls = [settings.external_urls[member] for member in bundle.members] if settings.external_urls else []
    deployment = serve.deployment(
        RolloutEngine,
        name="RolloutEngine",
        num_replicas=1 if urls else len(bundle.members),
        **placement_options(bundle),
        health_check_period_s=0.5,
        health_check_timeout_s=20.0,
        graceful_shutdown_timeout_s=5.0,
    )
    beside = [
        deployment.options(name=f"RolloutEngine-{number}").bind(address, settings, reward, generate, home, url, "")
        for number, url in enumerate(urls[1:], start=1)
    ]
    # An application has one root: the other replicas are its arguments.
    return deployment.bind(address, settings, reward, generate, home, urls[0] if urls else None, bundle.group, *beside)

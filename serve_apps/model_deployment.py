"""The Ray Serve deployment of a model that is served beside the trained one (`--sglang-config`)."""

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from typing import Any

import ray
from ray import serve

from schemas.errors import EngineError
from schemas.placements import PlannedBundles
from serve_apps.deployment import (
    START_DEADLINE_S,
    listen_on_this_node,
    loss_recorded,
    moved_here,
    placement_options,
    whereabouts,
)
from serve_apps.engines.arguments import resolve_device
from serve_apps.engines.served.model_server import ModelServer
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.engine_groups import EngineGroup
from slime_events.core.planning.homes import RAY_NODE, Home
from slime_events.core.run.join import join_run
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import RunAddress
from slime_events.core.run.run_end import until_over
from slime_events.core.run.served_models import ADDRESS, GROUP, MODEL, ROLE
from slime_events.core.run.shared_places import require_places
from storage.cancellation import end_all

log = logging.getLogger(__name__)


class ServedModelReplica:
    """A replica. It starts a server, records it in the log, and replaces it if it ends. It takes no rollouts."""

    def __init__(self, address: RunAddress, settings: EngineSettings, group: EngineGroup, home: Home | None) -> None:
        """settings: those of the group."""
        self._address, self._settings, self._group, self._home = address, settings, group, home
        listen_on_this_node()
        self._task = asyncio.get_event_loop().create_task(self._serve(), name="model")

    async def check_health(self) -> None:
        """Raise EngineError if the work has failed. Serve then replaces the replica."""
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise EngineError(f"the replica's work failed: {error}") from error

    async def _serve(self) -> None:
        """Serve until the run is over."""
        facts = {RAY_NODE: str(ray.get_runtime_context().get_node_id())}
        if self._home is not None:
            facts |= moved_here(self._home, *await asyncio.to_thread(whereabouts))
        facts |= {MODEL: self._group.model, GROUP: self._group.name}
        while True:
            async with join_run(self._address, ROLE) as worker:
                try:
                    async with loss_recorded(worker):
                        await self._serve_once(worker, facts)
                    return
                except EngineError as error:
                    log.warning("%s is lost and is replaced by another server: %s", worker.id, error)

    async def _serve_once(self, worker: Participant, facts: dict[str, str]) -> None:
        """Serve with one server until the run is over. Raises EngineError if the server ends first."""
        await asyncio.to_thread(require_places, self._address.shared)
        output = Path(self._address.folder) / "logs" / f"sglang-{worker.id}.log"
        host = str(ray.util.get_node_ip_address())
        server = ModelServer(self._settings, host, output, f"{self._address.run} {worker.id}")
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(server.stop)
            begun = time.perf_counter()
            await server.start(START_DEADLINE_S[resolve_device(self._settings)])
            await worker.join({"engine": time.perf_counter() - begun}, facts | {ADDRESS: server.address})
            lost, over = asyncio.create_task(server.ended()), asyncio.create_task(until_over(worker))
            try:
                await asyncio.wait((lost, over), return_when=asyncio.FIRST_COMPLETED)
                if not over.done():
                    raise EngineError(lost.result())
                over.result()
            finally:
                await end_all(lost, over)


def model_app(
    address: RunAddress,
    settings: EngineSettings,
    group: EngineGroup,
    *,
    bundle: PlannedBundles,
    home: Home | None = None,
) -> serve.Application:
    """Return the application of the servers of a planned bundle, for Serve. settings: those of the run."""
    options: dict[str, Any] = placement_options(bundle)
    deployment = serve.deployment(
        ServedModelReplica,
        name="ServedModel",
        num_replicas=len(bundle.members),
        **options,
        health_check_period_s=0.5,
        health_check_timeout_s=20.0,
        graceful_shutdown_timeout_s=5.0,
    )
    return deployment.bind(address, settings.of_group(group), group, home)

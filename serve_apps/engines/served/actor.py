"""`ModelRouterActor`: the routers of a run's served models, as a role."""

import asyncio
import contextlib
import time

from serve_apps.engines.served.model_router import ModelRouter
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.join import join_run
from slime_events.core.run.run_address import RunAddress
from slime_events.core.run.run_end import until_over
from slime_events.core.run.served_models import ServedModels
from storage.cancellation import end_all


class ModelRouterActor:
    """Listens at the addresses of `RunAddress.models`. A router that starts again listens at the same ones."""

    async def run(self, address: RunAddress, settings: TrainSettings) -> None:
        """Serve until the end of the run. Raises InvalidValue if an address cannot be bound."""
        begun = time.perf_counter()
        async with join_run(address, "models") as worker, contextlib.AsyncExitStack() as stack:
            served = ServedModels()
            await stack.enter_async_context(ModelRouter(served).listening(address.models))
            await worker.join({"ready": time.perf_counter() - begun}, dict(address.models))
            tasks = [asyncio.create_task(served.follow(worker)), asyncio.create_task(until_over(worker))]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                await end_all(*tasks)

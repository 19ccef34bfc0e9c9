"""`GatewayActor`: the gateway as a role of its run."""

import asyncio
import time
from pathlib import Path

from serve_apps.http.gateway.listening import bound_again
from serve_apps.http.gateway.settings import GatewaySettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.join import join_run
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import RunAddress
from slime_events.core.run.run_end import until_over
from slime_events.core.run.run_folder import RunFolder
from storage.cancellation import end_all

LAST_S = 1.0
"""Seconds after the run's end in which clients that follow a group still get its last state."""


class GatewayActor:
    """Runs the gateway with the gateway's own credentials, which allow less than those of other roles."""

    async def run(self, address: RunAddress, settings: TrainSettings) -> None:
        """Serve until the end of the run. Raises InvalidValue if the address cannot be bound."""
        from serve_apps.http.gateway.serving import (  # imports FastAPI, which a launcher does not need
            GatewayServer,
            url_of,
        )

        began, own = time.perf_counter(), GatewaySettings.of_run(settings.gateway)
        async with join_run(address, "gateway") as worker:
            with await bound_again(own) as listening:
                path = Path(address.folder)
                server = GatewayServer(RunFolder(path.parent, path.name), own)
                await worker.join({"ready": time.perf_counter() - began}, {"url": url_of(listening, own)})
                serving = asyncio.create_task(server.serve(listening))
                ending = asyncio.create_task(_end(worker))
                try:
                    await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
                    server.stop()
                    await serving
                finally:
                    await end_all(serving, ending)


async def _end(worker: Participant) -> None:
    await until_over(worker)
    await asyncio.sleep(LAST_S)

"""`TinkerActor`: the process that serves Tinker's protocol."""

import asyncio
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from schemas.errors import InvalidValue
from serve_apps.http.gateway.listening import bound, bound_again
from serve_apps.http.gateway.settings import GatewaySettings, is_loopback, parse_listen
from serve_apps.http.gateway.sources import Sources
from serve_apps.http.tinker.answers import Answers
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.join import join_run
from slime_events.core.run.run_address import RunAddress
from storage.blobs import BlobStore
from storage.cancellation import end_all
from storage.payloads import fetch


class TinkerActor:
    """Serves Tinker's protocol. It has no state besides the log: after a restart it answers as before."""

    async def run(self, address: RunAddress, settings: TrainSettings) -> None:
        """Serve until the end of the run."""
        from serve_apps.http.gateway.serving import HttpConfig, HttpServer, serve
        from serve_apps.http.tinker.app import tinker_app
        from serve_apps.http.tinker.calls import Calls
        from serve_apps.http.tinker.served import served_model

        began, blobs = time.perf_counter(), BlobStore(address.blob_url)
        host, port = parse_listen(settings.run.tinker or "", "--tinker")
        gateway = GatewaySettings(host=host, port=port)
        async with join_run(address, "tinker") as worker:
            served = await served_model(worker.log, settings)
            answers = Answers(worker, partial(fetch, blobs=blobs), attempts=settings.rollout.max_attempts)
            calls = Calls(worker, served, answers, blobs)
            app = tinker_app(calls, Sources(Path(address.folder)), gateway)
            server = HttpServer(HttpConfig(app, gateway))
            with await bound_again(gateway) as listening:
                await worker.join({"ready": time.perf_counter() - began})
                serving = asyncio.create_task(serve(server, listening))
                try:
                    await answers.follow()
                    server.should_exit = True
                    await serving
                finally:
                    await end_all(serving)


def check_tinker(address: str) -> None:
    """Raise InvalidValue if the address cannot be bound, or if other machines could connect to it."""
    host, port = parse_listen(address, "--tinker")
    if not is_loopback(host):
        raise InvalidValue(
            f"--tinker {address}: other machines can connect, and keys would cross the network unencrypted. Set "
            f"127.0.0.1:{port}, and let other machines connect through a proxy that does TLS, or with `ssh -L`"
        )
    if find_spec("tinker") is None:
        raise InvalidValue("--tinker needs the package of its messages: pip install 'slime-events[tinker]'")
    bound(GatewaySettings(host=host, port=port)).close()

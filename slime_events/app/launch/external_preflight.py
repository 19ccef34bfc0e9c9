"""Check the SGLang servers that a run uses as engines, before anything of the run is started."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from schemas.errors import InvalidValue, SlimeEventsError
from serve_apps.engines.external.http_engine import HttpEngine, load
from serve_apps.engines.external.served_model import RunModel
from serve_apps.engines.external.sglang_server import SglangServer
from slime_events.core.config.settings import TrainSettings
from storage.weights.files import write_shard

FLAG = "--rollout-external-engine-addrs"
ANSWER_S = 60.0
"""Seconds in which a server must answer and make its first tokens."""


def check_external(settings: TrainSettings) -> None:
    """Compare each server with the run's model. Raises InvalidValue with the reasons of all that do not fit."""
    model = RunModel(settings.engine.hf_checkpoint, settings.engine.device)

    async def check(url: str) -> None:
        engine = HttpEngine(url, model)
        await engine.start(ANSWER_S)
        await engine.stop()

    _check_all(settings.engine.external_urls, check)


def check_reads_weights(settings: TrainSettings, folder: str) -> None:
    """Let each server load an empty set of weights below the folder of weight versions, which changes none.

    Raises InvalidValue with the servers that cannot.
    """
    if not (urls := settings.engine.external_urls):
        return
    probe = Path(folder) / f"probe-{secrets.token_hex(8)}"

    async def check(url: str) -> None:
        server = SglangServer(url)
        try:
            await load(server, str(probe))
        except SlimeEventsError as error:
            raise InvalidValue(
                f"{url} cannot load weights from {folder}: mount that folder on its machine at the same path, readable "
                f"for the server, or choose another --runs-dir ({error})"
            ) from error
        finally:
            await server.close()

    probe.mkdir(parents=True)
    try:
        write_shard(probe / "model.safetensors", {}, durable=False)
        _check_all(urls, check)
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def _check_all(urls: Sequence[str], check: Callable[[str], Awaitable[None]]) -> None:
    async def check_all() -> list[BaseException | None]:
        return await asyncio.gather(*map(check, urls), return_exceptions=True)

    results = asyncio.run(check_all())
    reasons = [str(result) for result in results if isinstance(result, SlimeEventsError)]
    if reasons:
        raise InvalidValue(f"{FLAG}: {'; '.join(reasons)}")
    for result in results:
        if result is not None:
            raise result

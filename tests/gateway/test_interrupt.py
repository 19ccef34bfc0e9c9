"""Ctrl-C ends the command with 130, whenever it comes and whatever is lost on the way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serve_apps.http.gateway import serving
from serve_apps.http.gateway.live_run import LiveRun
from serve_apps.http.gateway.sources import Sources
from slime_events.app.cli.main import main
from slime_events.core.run.run_folder import RunFolder


class LosesCancellations(LiveRun):
    """Swallow cancellations, like nats-py and `asyncio.wait_for` while they close a connection."""

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)
        with contextlib.suppress(asyncio.CancelledError):
            await super().__aexit__(*_)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    make = serving.gateway_app

    def interrupted(*args: Any, **named: Any) -> Any:
        interrupt()
        return make(*args, **named)

    monkeypatch.setattr(serving, "gateway_app", interrupted)


def while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    start = serving.HttpServer.startup

    async def interrupted(self: serving.HttpServer, sockets: Any = None) -> None:
        interrupt()
        await start(self, sockets)

    monkeypatch.setattr(serving.HttpServer, "startup", interrupted)


def while_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    start = serving.HttpServer.startup

    async def interrupted(self: serving.HttpServer, sockets: Any = None) -> None:
        await start(self, sockets)
        asyncio.get_running_loop().call_later(0.2, interrupt)

    monkeypatch.setattr(serving.HttpServer, "startup", interrupted)


@pytest.mark.parametrize("when", [before_it_is_made, while_it_starts, while_it_serves])
def test_an_interrupt_is_130(
    when: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path, "r")
    folder.settings.write_text('[run]\nrun = "r"\n')
    Sources(folder.path).issue("quiz")
    monkeypatch.setattr(serving, "LiveRun", LosesCancellations)
    when(monkeypatch)
    assert main(["gateway", "r", "--runs-dir", str(tmp_path), "--listen", "127.0.0.1:0"]) == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

"""`Browser`: a headless Chromium, driven over its DevTools protocol. https://chromedevtools.github.io/devtools-protocol/"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chromium-headless-shell")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
START_S = 60.0
"""Seconds for a start on a busy machine."""
CALL_S = 60.0
OPTIONS = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    # no name is looked up, whatever a page asks for: the tests also work without a network
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
Json = dict[str, Any]


def chromium() -> str | None:
    """Return the path of a Chromium: `$CHROMIUM`, or the first that is installed; None if there is none."""
    given = os.environ.get("CHROMIUM")
    if given:
        return given
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or (MAC if Path(MAC).exists() else None)


class DevToolsError(Exception):
    """Chromium refused a call, or a script of the test raised."""


class Browser:
    """A Chromium with its own profile, while inside. folder: where the profile goes."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._calls: dict[int, asyncio.Future[Json]] = {}
        self._heard: dict[str, Callable[[str, Json], None]] = {}
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Browser:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def call(self, method: str, session: str | None = None, /, **parameters: object) -> Json:
        """Call a method. Raises DevToolsError."""
        number = len(self._calls)
        self._calls[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        answer = await asyncio.wait_for(self._calls[number], CALL_S)
        if "error" in answer:
            raise DevToolsError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    @contextlib.asynccontextmanager
    async def session(self, heard: Callable[[str, Json], None]) -> AsyncIterator[str]:
        """Open an empty tab without cookies or storage of others. heard: called with each of its events."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        session = str(attached["sessionId"])
        self._heard[session] = heard
        try:
            yield session
        finally:
            del self._heard[session]
            await self.call("Target.disposeBrowserContext", browserContextId=context)

    async def _start(self) -> None:
        # the sandbox of Chromium refuses to run as root, as in CI
        as_root = ["--no-sandbox"] if sys.platform == "linux" and os.geteuid() == 0 else []
        process = await asyncio.create_subprocess_exec(
            self._program, *OPTIONS, *as_root, f"--user-data-dir={self._folder}",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self._stack.push_async_callback(_ended, process)
        url = await asyncio.wait_for(self._address(process), START_S)
        client = await self._stack.enter_async_context(aiohttp.ClientSession())
        self._socket = await self._stack.enter_async_context(client.ws_connect(url, max_msg_size=0, heartbeat=None))
        reading = asyncio.create_task(self._read())
        self._stack.callback(reading.cancel)

    async def _address(self, process: asyncio.subprocess.Process) -> str:
        """Return the WebSocket's URL, which Chromium writes into its profile."""
        written = self._folder / "DevToolsActivePort"
        while True:
            if process.returncode is not None:
                raise DevToolsError(f"{self._program} ended at once with status {process.returncode}")
            lines = written.read_text().splitlines() if written.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            await asyncio.sleep(0.02)

    async def _read(self) -> None:
        async for message in self._socket:
            event = message.json()
            if "id" in event:
                self._calls[event["id"]].set_result(event)
            elif heard := self._heard.get(event.get("sessionId", "")):
                heard(event["method"], event["params"])


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()

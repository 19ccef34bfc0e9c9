"""`ModelServer`: a SGLang server of another model than the trained one, as a child process."""

import asyncio
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from schemas.errors import DeadlineExceeded, EngineError
from serve_apps.engines.arguments import engine_launch
from serve_apps.engines.engine_folder import ARGUMENTS, EngineFolder, clear_abandoned
from serve_apps.engines.sglang_engine import reason_in_log
from slime_events.core.child.process import Child
from slime_events.core.config.engine import EngineSettings
from slime_events.core.run.own_python import own_command, own_path
from storage.nats.ports import free_port, with_port

LOOK_S, ASK_S = 0.2, 5.0
OURS = ("incremental_streaming_output", "stream_interval", "weight_version")
"""Arguments of engines whose output goes into the log. A served model has SGLang's own."""
LOG_BYTES = 65536


class ModelServer:
    """A server on `host`, at a free port. SGLang's output goes to `log`. `name` identifies this start."""

    def __init__(self, settings: EngineSettings, host: str, log: Path, name: str) -> None:
        self._launch = engine_launch(settings, name=name)
        self._host, self._log_path = host, log
        self._folder = EngineFolder()
        self._child: Child | None = None
        self._start_of_log = log.stat().st_size if log.exists() else 0
        self.address = ""

    async def start(self, deadline_s: float) -> None:
        """Start it, and wait until it generates. Raises EngineError with SGLang's own reason."""
        await asyncio.to_thread(clear_abandoned)
        port = free_port(self._host)  # if another process takes it first, the start fails and is repeated
        self.address = with_port(self._host, port)
        arguments: dict[str, Any] = {key: value for key, value in self._launch.arguments.items() if key not in OURS}
        arguments |= {"host": self._host, "port": port, "skip_server_warmup": True}
        (self._folder.path / ARGUMENTS).write_bytes(msgspec.json.encode(arguments))
        with self._log_path.open("ab") as output:
            self._child = Child(
                own_command("serve_apps.engines.served.model_process"),
                [str(self._folder.path)],
                environment=os.environ | own_path() | self._launch.environment | {"TMPDIR": str(self._folder.path)},
                output=output,
            )
        until = time.monotonic() + deadline_s
        while not await asyncio.to_thread(self._answers):
            if not self._child.runs:
                raise EngineError(f"SGLang ended: {self._reason()}")
            if time.monotonic() > until:
                raise DeadlineExceeded(f"SGLang did not start within {deadline_s:g} s; its log: {self._reason()}")
            await asyncio.sleep(LOOK_S)

    async def ended(self) -> str:
        """Wait until the server's process ends by itself, and return why."""
        assert self._child is not None, "start comes first"
        while self._child.runs:  # noqa: ASYNC110  SGLang's children may keep the socket open, so it is no signal
            await asyncio.sleep(LOOK_S)
        return f"SGLang ended: {self._reason()}"

    async def stop(self) -> None:
        """End all its processes."""
        if self._child is not None:
            await asyncio.to_thread(self._child.end)
            self._child.close()
        self._folder.remove()

    def _answers(self) -> bool:
        """Return whether it generates a token. Blocks."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/health_generate", timeout=ASK_S) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _reason(self) -> str:
        """Return the last error in its log, or else how its process ended."""
        with self._log_path.open("rb") as log:
            log.seek(max(self._start_of_log, self._log_path.stat().st_size - LOG_BYTES))
            reason = reason_in_log(log.read().decode(errors="replace"))
        return reason or (self._child.ending() if self._child else "it was not started")

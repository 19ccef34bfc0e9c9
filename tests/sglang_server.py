"""`SglangServer`: a real SGLang server on the CPU, started as its users do, without anything of a run."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from serve_apps.engines.arguments import SHIMS

START_S = 240.0
CPU = {
    "--device": "cpu",
    "--dtype": "float32",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--grammar-backend": "none",
    "--mem-fraction-static": "0.3",
    "--max-total-tokens": "20000",
}
WITHOUT = ("--disable-cuda-graph", "--disable-overlap-schedule")


class SglangServer:
    """Use it as `with`. `start` may be called again after `kill`: the server then has its first weights."""

    def __init__(self, checkpoint: str, log: Path, *words: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._words = ["--model-path", checkpoint, *[word for pair in CPU.items() for word in pair], *WITHOUT, *words]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it without waiting."""
        host, port = self.address.split(":")
        path = os.pathsep.join(filter(None, (str(SHIMS), os.environ.get("PYTHONPATH"))))
        own = {"PYTHONPATH": path, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", "--host", host, "--port", port, *self._words],
                stdout=log,
                stderr=log,
                env=os.environ | own,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until it generates."""
        end = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{self.address}/health_generate"):
                return
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < end, self._log.read_text()[-2000:]
            time.sleep(0.2)

    def kill(self) -> None:
        """End all its processes with SIGKILL."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> SglangServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

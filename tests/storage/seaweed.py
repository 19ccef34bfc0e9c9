"""A real S3 server, SeaweedFS, on loopback; and a proxy before it that answers badly."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import fsspec
import pytest
from s3fs import S3FileSystem

from storage.nats.ports import HOST
from tests.storage.nats_cluster import free_ports

READY_S = 90.0
PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)


class Seaweed:
    """One process, while inside. `kill` and `start` again on the same folder and ports. key, secret: the only ones that
    it takes, in place of any."""

    def __init__(self, folder: Path, *, key: str = "", secret: str = "") -> None:
        self._folder, self._key, self._secret = folder, key, secret
        self._ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def port(self) -> int:
        return self._ports["s3.port"]

    def start(self) -> None:
        """Returns when it takes an object."""
        self._folder.mkdir(parents=True, exist_ok=True)
        binary = Path(sys.executable).parent / "weed"
        allowed = ["Admin", "Read", "List", "Tagging", "Write"]
        identity = {"name": "me", "credentials": [{"accessKey": self._key, "secretKey": self._secret}]}
        (self._folder / "s3.json").write_text(json.dumps({"identities": [identity | {"actions": allowed}]}))
        with (self._folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(binary), "server", f"-dir={self._folder}", f"-ip={HOST}", f"-ip.bind={HOST}", "-filer", "-s3",
                    "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=64", "-volume.max=20",
                    "-master.electionTimeout=1s",  # ten otherwise, after each kill
                    *(f"-{name}={port}" for name, port in self._ports.items()),
                    *([f"-s3.config={self._folder / 's3.json'}"] if self._key else []),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + READY_S
        own = {"key": self._key, "secret": self._secret} if self._key else {}
        # A server that is starting may accept a request and never answer it. By default that is five times a minute.
        client = {"read_timeout": 5, "connect_timeout": 1, "retries": {"max_attempts": 0}}
        files = fsspec.filesystem("s3", **(options_of(self.port, **client) | own), skip_instance_cache=True)
        while True:
            try:
                with contextlib.suppress(FileExistsError):
                    files.mkdir("slime")
                files.pipe_file("slime/ready", b"yes")
                return
            except Exception as error:
                if time.monotonic() > end:
                    raise TimeoutError(f"SeaweedFS took no object in {READY_S:.0f} s: {error}") from error
                time.sleep(0.2)

    def kill(self) -> None:
        """SIGKILL: its orderly end takes half a minute."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


@contextlib.contextmanager
def as_s3(folder: Path) -> Iterator[None]:
    """Serve what fsspec opens as `s3://`, here and in every process of a run. The bucket is `slime`."""
    with Seaweed(folder) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{HOST}:{server.port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "k")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        yield
    S3FileSystem.clear_instance_cache()  # the next server has another port by the same URL


def options_of(port: int, **client: Any) -> dict[str, Any]:
    """fsspec options of an S3 server on loopback. client: for botocore's Config, e.g. `read_timeout`."""
    endpoint = {"client_kwargs": {"endpoint_url": f"http://{HOST}:{port}"}}
    return {"key": "k", "secret": "s", **endpoint, **({"config_kwargs": client} if client else {})}


Fault = Callable[[str, int], str | None]
"""(method, number of the request) -> "refuse" (503), "cut" (half an answer), "slow" (2 s), "lose" (it is done, and the
answer is a 500), "deny" (403), or None."""
SLOW_S = 2.0


@contextlib.contextmanager
def faulty(target: int, fault: Fault) -> Iterator[int]:
    """The port of a proxy to the server at port `target`."""
    numbers = iter(range(1, 1 << 30))

    class Proxy(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            what = fault(self.command, next(numbers))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if what in ("refuse", "deny"):
                self._answer(503 if what == "refuse" else 403, b"")
                return
            if what == "slow":
                time.sleep(SLOW_S)
            upstream = http.client.HTTPConnection(HOST, target, timeout=30)
            upstream.request(self.command, self.path, body, dict(self.headers.items()))
            answer = upstream.getresponse()
            data = answer.read()
            upstream.close()
            if what == "lose":
                self._answer(500, b"")
                return
            kept = {"Content-Length", "Connection", "Transfer-Encoding", "Date", "Server"}
            headers = {k: v for k, v in answer.getheaders() if k not in kept}
            length = int(answer.getheader("Content-Length") or 0) if self.command == "HEAD" else len(data)
            self._answer(answer.status, data, headers, length=length, cut=what == "cut")

        def _answer(
            self, status: int, data: bytes, headers: dict[str, str] | None = None, *, length: int = 0, cut: bool = False
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if cut else data)
            if cut:
                self.close_connection = True

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass_on  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer((HOST, 0), Proxy)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

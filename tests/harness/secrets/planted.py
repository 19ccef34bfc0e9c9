"""Secrets that a run is given in every way there is, the servers that require them, and a search for them afterwards.

The servers take nothing but the right password, key or token: a run that reaches its end has used each of them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from s3fs import S3FileSystem

from storage.archive.reader import ArchiveReader
from storage.nats.ports import HOST
from storage.nats.server import NatsServer
from tests.storage.seaweed import Seaweed

NATS_PASSWORD = "planted-nats-pw"
S3_KEY, S3_SECRET = "PLANTEDKEYID", "planted/s3+secret"
OTLP_TOKEN, OTLP_PASSWORD = "planted-otlp-token", "planted-otlp-pw"
API_KEY, HF_TOKEN, WANDB_KEY = "planted-api-key", "planted-hf-token", "planted-wandb-key"
SECRETS = (NATS_PASSWORD, S3_KEY, S3_SECRET, OTLP_TOKEN, OTLP_PASSWORD, API_KEY, HF_TOKEN, WANDB_KEY)
BUCKET = "s3://slime/archive"


@dataclass(slots=True)
class Servers:
    """Servers of a run, by where they listen. stored: folder of the NATS server. received: bodies that the collector of
    spans got with the right token. refused: number of requests without it."""

    stored: Path
    nats: str
    s3: str
    otlp: str
    received: list[bytes] = field(default_factory=list)
    refused: int = 0

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of a run that uses all of the servers."""
        nats = self.nats.replace("://", f"://slime:{NATS_PASSWORD}@")
        otlp = self.otlp.replace("://", f"://me:{OTLP_PASSWORD}@")
        return (
            *("--nats-url", nats, "--archive-url", BUCKET, "--otlp-endpoint", otlp),
            *("--sglang-api-key", API_KEY, "--sglang-log-level", "info", "--archive-seconds", "0.5"),
        )

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the processes of such a run."""
        return {
            "AWS_ENDPOINT_URL": self.s3,
            "AWS_ACCESS_KEY_ID": S3_KEY,
            "AWS_SECRET_ACCESS_KEY": S3_SECRET,
            "OTEL_EXPORTER_OTLP_HEADERS": f"x-token=Bearer%20{OTLP_TOKEN}",
            "HF_TOKEN": HF_TOKEN,
            "WANDB_API_KEY": WANDB_KEY,
        }


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    """A NATS server with a password, an S3 server with keys, a collector of spans with a token and a password."""
    store = Seaweed(folder / "s3", key=S3_KEY, secret=S3_SECRET)
    authorization = f"authorization {{ user: slime, password: {NATS_PASSWORD!r} }}"
    nats = asyncio.run(NatsServer.start(folder / "nats", more=authorization))
    try:
        store.start()
        S3FileSystem.clear_instance_cache()
        with _collector(
            Servers(folder / "nats" / "jetstream", nats.url, f"http://{HOST}:{store.port}", "")
        ) as all_of_them:
            yield all_of_them
    finally:
        S3FileSystem.clear_instance_cache()  # others mean another server by the same URL
        store.kill()
        asyncio.run(nats.stop())


@contextlib.contextmanager
def _collector(those: Servers) -> Iterator[Servers]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            allowed = self.headers["x-token"] == f"Bearer {OTLP_TOKEN}"
            if allowed:
                those.received.append(body)
            else:
                those.refused += 1
            self.send_response(200 if allowed else 401)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer((HOST, 0), Handler)
    those.otlp = f"http://{HOST}:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield those
    finally:
        server.shutdown()
        server.server_close()


def found_in(name: str, data: bytes) -> list[str]:
    """Return `name: secret` for each secret in these bytes: as it is, in a URL's spelling, in Base64, or in UTF-16."""
    lines = []
    for secret in SECRETS:
        forms = {secret, urllib.parse.quote(secret, safe=""), base64.b64encode(secret.encode()).decode()[:-4]}
        if any(form.encode() in data for form in forms) or secret.encode("utf-16-le") in data:
            lines.append(f"{name}: {secret}")
    return lines


def found_under(*folders: Path) -> list[str]:
    """Return `name: secret` for each secret in the files under these folders, and in their names."""
    lines: list[str] = []
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            lines += found_in(f"name of {path}", str(path.relative_to(folder)).encode())
            if path.is_file() and not path.is_symlink():
                lines += found_in(str(path), path.read_bytes())
    return lines


def found_in_archive(run: str) -> list[str]:
    """Return `name: secret` for each secret in the archived records, whose segments are compressed."""
    records = ArchiveReader(BUCKET, run).records()
    return [line for record in records for line in found_in(f"{record.subject} at {record.position}", record.data)]


def found_in_spans(bodies: Iterable[bytes]) -> list[str]:
    """Return `name: secret` for each secret in the spans that the collector got."""
    return [line for body in bodies for line in found_in("spans", body)]

"""Define where the storage tests keep things: NATS servers, a folder, memory, and an S3 server in this process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from storage.nats.server import NatsServer
from tests.storage.nats_cluster import NatsCluster
from tests.storage.stores import StoreUrl

_numbers = itertools.count()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A NATS server for all tests of this folder, each of which has a run of its own on it."""
    server = asyncio.run(NatsServer.start(tmp_path_factory.mktemp("nats")))
    yield server
    asyncio.run(server.stop())


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Three NATS servers that keep a log together, for all tests of this folder."""
    cluster = asyncio.run(NatsCluster.start(tmp_path_factory.mktemp("cluster")))
    yield cluster
    asyncio.run(cluster.stop())


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, Any]]:
    """fsspec options of an S3 server with the bucket `slime`."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": f"http://{host}:{port}"}}
    fsspec.filesystem("s3", **options).mkdir("slime")
    yield options
    server.stop()


@pytest.fixture(params=["path", "file", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, s3_options: dict[str, Any]) -> StoreUrl:
    """Run the same test on every kind of store."""
    number = next(_numbers)
    match request.param:
        case "path":
            return StoreUrl(str(tmp_path / "store"))
        case "file":
            return StoreUrl(f"file://{tmp_path}/store")
        case "memory":
            return StoreUrl(f"memory://slime-{number}")
        case _:
            return StoreUrl(f"s3://slime/{number}", s3_options)

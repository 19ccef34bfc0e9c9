"""Several servers that run already, as deployments of one Ray Serve application."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.placements import PlacedRole
from slime_events.core.run.run_address import RunAddress
from storage.jetstream.address import NatsAddress
from tests import made
from tests.cluster.machines import wait_for
from tests.run.test_roles import placed

ADDRESSES = ("10.0.0.5:30000", "10.0.0.6:30000", "10.0.0.7:30000")
PROGRAM = "import sys; from tests.run.test_external_deployment import deploy; deploy(sys.argv[1])"


class Recorder:
    """Replaces `RolloutEngine`: it writes the address of its server into a file named by its process id."""

    def __init__(self, address: RunAddress, *arguments: Any) -> None:
        url = next(argument for argument in arguments if isinstance(argument, str))
        Path(address.folder, str(os.getpid())).write_text(url)


def servers_in(folder: Path) -> Counter[str]:
    return Counter(file.read_text() for file in folder.iterdir())


def deploy(where: str) -> None:
    """Deploy an engine per server, and kill one."""
    from serve_apps import deployment
    from slime_events.app.launch.cluster import Cluster

    folder = Path(where, "engines")
    folder.mkdir()
    setattr(deployment, "RolloutEngine", Recorder)  # noqa: B010
    address = RunAddress(
        run="many", nats=NatsAddress(url=""), folder=str(folder), blob_url="", archive_url="", weights_url=""
    )
    settings = made.settings(engine={"rollout_external_engine_addrs": list(ADDRESSES), "device": "cpu"})
    (bundle,) = [bundle for bundle in placed(settings).bundles if bundle.role is PlacedRole.ENGINE]
    cluster = Cluster(None, Path(where, "token"))
    cluster.start()
    try:
        cluster.serve([deployment.rollout_app(address, settings.engine, settings.reward, bundle=bundle)], "many")
        assert servers_in(folder) == Counter(settings.engine.external_urls)
        lost = next(file for file in folder.iterdir() if ADDRESSES[1] in file.read_text())
        os.kill(int(lost.name), signal.SIGKILL)
        wait_for(lambda: servers_in(folder).total() == len(ADDRESSES) + 1, "another engine")
        assert servers_in(folder) == Counter([*settings.engine.external_urls, settings.engine.external_urls[1]])
    finally:
        cluster.stop()


@pytest.mark.real
def test_each_server_has_an_engine_and_a_lost_engine_gets_its_server_again(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr

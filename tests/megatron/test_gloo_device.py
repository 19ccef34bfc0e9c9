"""The device that all gloo groups share listens where torch's own would: on the interface of the variable."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

PROGRAM = """
import torch.distributed as dist
from slime_events.core.run.gloo_device import share_gloo_device

share_gloo_device()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.new_group([0])
import psutil

print(*{each.laddr.ip for each in psutil.Process().net_connections() if each.status == "LISTEN"})
"""


def _interfaces() -> list[tuple[str, str]]:
    """Return two interfaces with an IPv4 address each."""
    addresses = psutil.net_if_addrs().items()
    return [
        (name, address.address) for name, some in addresses for address in some if address.family.name == "AF_INET"
    ][:2]


@pytest.mark.parametrize(("interface", "address"), _interfaces())
def test_it_listens_on_the_interface_that_was_named(interface: str, address: str) -> None:
    environment = {"PATH": "/usr/bin:/bin", "GLOO_SOCKET_IFNAME": interface}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == [address]

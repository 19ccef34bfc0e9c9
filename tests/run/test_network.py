"""Addresses at which the processes of a run meet, on one machine and on several."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from schemas.errors import InvalidValue
from slime_events.app.launch.ray_place import ray_place
from slime_events.core.run import network
from slime_events.core.run.network import (
    address_towards,
    carried_variables,
    interface_variables,
    listen_towards,
    log_host,
    meeting_host,
)
from slime_events.core.run.process_environment import LOOPBACK_ONLY

INTERFACES = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.5", "02:fc:00:00:00:01"], "ib0": ["10.1.0.5", "fd00::5"]}


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([], "127.0.0.1"),
        (["10.0.0.5"], "127.0.0.1"),
        (["10.0.0.5", "10.0.0.5"], "127.0.0.1"),
        (["10.0.0.5", "10.0.0.5", "10.0.0.6"], "10.0.0.5"),
        (["10.0.0.6", "10.0.0.5"], "10.0.0.6"),
    ],
)
def test_ranks_meet_where_the_first_is_unless_all_are_on_one_machine(hosts: list[str], expected: str) -> None:
    assert meeting_host(hosts) == expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("127.0.0.1", LOOPBACK_ONLY),
        ("10.0.0.5", {"GLOO_SOCKET_IFNAME": "eth0"}),
        ("fd00::5", {"GLOO_SOCKET_IFNAME": "ib0"}),
        ("10.9.9.9", {}),
    ],
)
def test_torch_listens_on_the_network_on_which_the_ranks_meet(own: str, expected: dict[str, str]) -> None:
    assert interface_variables(own, INTERFACES) == expected


@pytest.mark.parametrize("named", [None, "ib0"])
def test_an_interface_that_the_environment_names_is_left(monkeypatch: pytest.MonkeyPatch, named: str | None) -> None:
    monkeypatch.setattr(network, "_interfaces", lambda: INTERFACES)
    monkeypatch.setattr(network, "address_towards", lambda _: "10.0.0.5")
    for name in LOOPBACK_ONLY:
        monkeypatch.delenv(name, raising=False)
    if named:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", named)
    listen_towards("10.0.0.7")
    assert [os.environ.get(name) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")] == [named or "eth0", None]
    for name in LOOPBACK_ONLY:
        monkeypatch.delenv(name, raising=False)
    listen_towards("127.0.0.1")
    assert {name: os.environ.get(name) for name in LOOPBACK_ONLY} == LOOPBACK_ONLY


@pytest.mark.parametrize("ray", ["10.0.0.7:6379", "head.example:6379", "ray://10.0.0.7:10001"])
def test_a_log_listens_on_the_network_of_its_ray(monkeypatch: pytest.MonkeyPatch, ray: str) -> None:
    hosts: list[str] = []

    def own(host: str) -> str:
        hosts.append(host)
        return "10.0.0.5"

    monkeypatch.setattr(network, "address_towards", own)
    assert log_host(ray) == "10.0.0.5"
    assert hosts == [ray.rpartition("/")[2].partition(":")[0]]


@pytest.mark.parametrize("ray", [None, "127.0.0.1:6379", "localhost:6379", "[::1]:6379"])
def test_a_log_of_one_machine_listens_on_loopback(ray: str | None) -> None:
    assert log_host(ray) == "127.0.0.1"


def test_an_own_address_is_found_without_a_packet() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("call", [address_towards, log_host])
def test_a_host_that_cannot_be_reached_is_named(call: Callable[[str], str]) -> None:
    with pytest.raises(InvalidValue, match=r"nowhere\.invalid"):
        call("nowhere.invalid")


def test_variables_of_the_network_reach_other_machines() -> None:
    own = {"NCCL_IB_HCA": "mlx5", "GLOO_SOCKET_IFNAME": "ib0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "1"}
    assert carried_variables(own | {"HOME": "/root", "AWS_SECRET_ACCESS_KEY": "s", "MY_NCCL_": "1"}) == own


def test_a_ray_is_named_without_joining_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_place(None) is None
    assert ray_place("local") is None
    assert ray_place("10.0.0.7:6379") == "10.0.0.7:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.8:6379")
    assert ray_place("auto") == "10.0.0.8:6379"

"""`Cluster`: what it makes of Ray, without one."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import auto_init_hook, services, worker
from ray._private.node import Node
from ray.exceptions import RaySystemError

from slime_events.app.launch.cluster import ONLOOKERS, QUIET, Cluster

THREADS = "OMP_NUM_THREADS"


class Late:
    """No actor any more."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Ray was asked to start with, each time. What a start leaves behind is undone after the test."""
    begun: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "init", lambda **named: begun.append({**named, "threads": os.environ.get(THREADS)}))
    monkeypatch.delenv(THREADS, raising=False)
    monkeypatch.setattr(services, "resolve_ip_for_localhost", services.resolve_ip_for_localhost)
    for name in ONLOOKERS:
        monkeypatch.setattr(Node, name, getattr(Node, name))
    monkeypatch.setattr(ray, "cluster_resources", dict)
    monkeypatch.setattr(auto_init_hook, "enable_auto_connect", True)
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    return begun


def test_a_call_that_comes_after_ray_has_ended_starts_no_other(tmp_path: Path, begun: list[dict[str, Any]]) -> None:
    cluster = Cluster("127.0.0.1:1")
    cluster.start()
    with pytest.raises(RaySystemError, match="has not been started"):
        cluster.actor(Late, "late")
    assert [named["address"] for named in begun] == ["127.0.0.1:1"]


def test_workers_of_our_own_ray_inherit_their_variables(begun: list[dict[str, Any]]) -> None:
    """Elsewhere only a runtime_env reaches them. Here it would have each of them import Ray twice."""
    Cluster(None).start()
    Cluster("127.0.0.1:1").start()
    assert ["runtime_env" in named for named in begun] == [False, True]
    assert [named["threads"] for named in begun] == ["1", None]
    assert begun[1]["runtime_env"]["env_vars"][THREADS] == "1"
    assert THREADS not in os.environ


@pytest.mark.parametrize(
    ("gpus", "asked"),
    [
        (None, {"num_gpus": 0}),
        (0.0, {"num_gpus": 0, "runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}}),
        (0.6, {"num_gpus": 0.6}),
    ],
)
def test_an_actor_without_gpus_sees_none(
    gpus: float | None, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}

    def remote(**options: Any) -> Any:
        made.update(options)
        handle = SimpleNamespace(remote=lambda: "actor")
        return lambda _: SimpleNamespace(options=lambda name: handle)

    monkeypatch.setattr(ray, "remote", remote)
    assert Cluster(None).actor(Late, "late", gpus=gpus) == "actor"
    assert {name: made[name] for name in made if name in ("num_gpus", "runtime_env")} == asked

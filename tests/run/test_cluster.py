"""`Cluster`: what it makes of Ray, without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import auto_init_hook, worker
from ray.exceptions import RaySystemError

from slime_events.app.launch.cluster import QUIET, Cluster


class Late:
    """No actor any more."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Ray was asked to start with, each time. What a start leaves behind is undone after the test."""
    begun: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "init", lambda **named: begun.append(named))
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

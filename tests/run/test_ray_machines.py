"""`RayMachine`: machines of a Ray, by the rows of `ray.nodes`."""

from __future__ import annotations

from typing import Any

import pytest
import ray
from ray.util.placement_group import NODE_ID_LABEL_KEY

from slime_events.app.launch.ray_machines import answer_of, lost_of, ray_machines


def row(address: str, *, alive: bool = True, reason: int = 0, gpus: int = 0) -> dict[str, Any]:
    resources = {"GPU": float(gpus)} if gpus else {}
    return {
        "NodeID": "ab" * 28,
        "NodeManagerAddress": address,
        "Alive": alive,
        "Resources": resources,
        "DeathReason": reason,
        "DeathReasonMessage": "health check failed" if reason == 2 else "",
    }


def test_machines_are_those_that_are_alive_in_the_order_of_their_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row("10.0.0.10"), row("10.0.0.9", gpus=8), row("10.0.0.1", alive=False)]
    monkeypatch.setattr(ray, "nodes", lambda: rows)
    assert [(machine.address, machine.gpus) for machine in ray_machines()] == [("10.0.0.9", 8), ("10.0.0.10", 0)]
    assert ray_machines()[0].only == {"label_selector": {NODE_ID_LABEL_KEY: "ab" * 28}}


def test_a_lost_machine_is_named_unless_it_was_stopped_or_is_back() -> None:
    rows = [
        row("10.0.0.1"),
        row("10.0.0.2", alive=False, reason=2),
        row("10.0.0.3", alive=False, reason=1),
        row("10.0.0.4", alive=False, reason=4),
        row("10.0.0.5", alive=False, reason=2),
        row("10.0.0.5"),
        row("10.0.0.6", alive=False, reason=3),
    ]
    assert lost_of(rows) == {"10.0.0.2": "health check failed", "10.0.0.6": "no reason given"}


def test_an_answer_has_no_reason_and_a_reason_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {
        "fine": [1],
        "late": ray.exceptions.GetTimeoutError(),
        "broken": ray.exceptions.RaySystemError("no module"),
    }

    def get(name: str, timeout: float) -> Any:
        assert timeout == 0.0
        if isinstance(answers[name], Exception):
            raise answers[name]
        return answers[name]

    monkeypatch.setattr(ray, "get", get)
    assert answer_of("fine", -1, 5) == ([1], "")
    assert [answer_of(name, -1, 5)[0] for name in ("late", "broken")] == [None, None]
    assert "5 s" in answer_of("late", -1, 5)[1]
    assert "no module" in answer_of("broken", -1, 5)[1]

"""Keys of object stores reach the processes of a run on other machines."""

from __future__ import annotations

import os

import pytest

from actors.ray_actors import RankActor
from slime_events.core.planning.homes import Home
from slime_events.core.run.places import store_variables

KEYS = {"AWS_SECRET_ACCESS_KEY": "k", "AZURE_STORAGE_ACCOUNT_KEY": "a", "FSSPEC_S3_KEY": "f"}


def test_variables_of_stores_are_carried_and_others_are_not() -> None:
    assert store_variables(KEYS | {"HOME": "/root", "HF_TOKEN": "t"}) == KEYS


def test_a_rank_has_them_before_it_looks_at_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "")
    monkeypatch.setattr("actors.ray_actors.require_places", lambda _: seen.append(os.environ["AWS_SECRET_ACCESS_KEY"]))
    monkeypatch.setattr("actors.trainer.rank_hosts.own_host", lambda: Home("n", "10.0.0.6"))
    assert RankActor.host(object.__new__(RankActor), (), {"AWS_SECRET_ACCESS_KEY": "k"}).address == "10.0.0.6"
    assert seen == ["k"]

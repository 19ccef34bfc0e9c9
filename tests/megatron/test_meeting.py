"""Ranks meet on the master's address alone, for the trainer and for an engine."""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from actors.megatron.trainee import join, meeting_place
from actors.trainer.ranks import rendezvous_address
from schemas.errors import RankLost
from serve_apps.engines.plugin import store_on_one_address
from slime_events.app.launch.roles import is_lost
from slime_events.core.config.trainer import TrainerSettings
from storage.nats.ports import HOST
from tests.run.sockets import listening

SOON = timedelta(seconds=30)


def an_engine_s(address: str, rank: int, world: int, timeout: timedelta) -> Any:
    host, _, port = address.rpartition(":")
    create = importlib.import_module("torch.distributed.rendezvous")._create_c10d_store  # a function has its name too
    return store_on_one_address(create, host, int(port), rank, world, timeout)


@pytest.mark.parametrize("meet", [meeting_place, an_engine_s])
def test_ranks_meet_on_loopback(meet: Callable[..., Any]) -> None:
    address = rendezvous_address()
    with ThreadPoolExecutor() as pool:
        first, second = (pool.submit(meet, address, rank, 2, SOON) for rank in range(2))
        stores = first.result(60), second.result(60)
    stores[0].set("said", "by the first")
    assert stores[1].get("said") == b"by the first"
    port = int(address.rpartition(":")[2])
    assert [listener.address for listener in listening(os.getpid()) if listener.port == port] == ["127.0.0.1"]


def test_a_port_that_is_taken_is_an_error() -> None:
    address = rendezvous_address()
    with ThreadPoolExecutor() as pool:
        stores = list(pool.map(lambda rank: meeting_place(address, rank, 2, SOON), range(2)))
    with pytest.raises(OSError, match="in use"):
        meeting_place(address, 0, 2, SOON)
    del stores


def test_a_rank_whose_port_is_taken_is_lost_so_that_a_new_trainer_takes_another_port() -> None:
    with socket.create_server((HOST, 0)) as other:
        address = f"{HOST}:{other.getsockname()[1]}"
        with pytest.raises(RankLost, match=rf"rank 0 of 2 could not join the trainer at {address}: .*in use") as raised:
            join(TrainerSettings(), 0, 2, address)
    assert is_lost(raised.value)

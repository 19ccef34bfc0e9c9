"""All ranks as one: a rank that fails is heard of while the others still wait for it."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from actors.trainer import ranks, ray_ranks
from actors.trainer.ray_ranks import RayRanks
from schemas.errors import RankLost, TrainerError
from slime_events.core.config.settings import TrainSettings
from slime_events.core.training.train_batch import TrainBatch

IN_VAIN_S = 60.0
"""As long as the ranks' own deadline, had they one here."""


class InACollective:
    """Rank 0: waits for its peers until the test is over."""

    def __init__(self) -> None:
        self.over, self.closed = threading.Event(), threading.Event()

    def optimizer_digest(self) -> str:
        self.over.wait(IN_VAIN_S)
        raise TrainerError("rank 0 waited in vain")

    def close(self) -> None:
        self.closed.set()


class Peer:
    """Play an actor by its methods; a scripted failure leaves its process alive."""

    def __init__(self, error: Exception | None = None) -> None:
        self.start, self.call = Method(None), Method(error)


class Method:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def remote(self, *args: Any) -> None:
        if self._error is not None:
            raise self._error


async def test_peers_share_one_copy_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, passed = list[object](), list[object]()

    def put(batch: object) -> str:
        stored.append(batch)
        return "where it is"

    class Trains:
        def remote(self, *args: object) -> asyncio.Future[None]:
            passed.append(args)
            answer = asyncio.get_running_loop().create_future()
            answer.set_result(None)
            return answer

    peers = [SimpleNamespace(call=Trains(), start=Trains()) for _ in range(3)]
    monkeypatch.setattr("ray.put", put)
    monkeypatch.setattr(ray_ranks, "rank_class", lambda: lambda *args: SimpleNamespace(train=lambda batch, dump: batch))
    together = RayRanks(peers)
    await together.start(TrainSettings(), "")
    passed.clear()
    batch = TrainBatch(step=1, samples=(), temperature=1.0)
    assert await together.train(batch) is batch
    assert stored == [batch]
    assert passed == [("train", "where it is", None)] * 3


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (TrainerError("no memory left"), pytest.raises(TrainerError, match="no memory left")),
        (ActorDiedError(), pytest.raises(RankLost, match="rank 2 is gone")),
    ],
)
async def test_what_a_peer_fails_with_is_told_while_rank_0_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, error: Any
) -> None:
    rank_0, peers, killed = InACollective(), [Peer(), Peer(failure)], list[Peer]()
    monkeypatch.setattr(ranks, "BLAME_S", 0.01)
    monkeypatch.setattr(ray_ranks, "CLOSE_S", 0.01)
    monkeypatch.setattr(ray_ranks, "rank_class", lambda: lambda *args: rank_0)
    monkeypatch.setattr("ray.kill", killed.append)
    together = RayRanks(peers)
    await together.start(TrainSettings(), "")
    with error:
        await together.optimizer_digest()
    assert killed == peers
    await together.close()
    assert not rank_0.closed.is_set(), "its thread still waits"
    rank_0.over.set()

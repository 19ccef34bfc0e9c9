"""The router of a served model, with servers that are plain sockets."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from schemas.errors import InvalidValue
from schemas.workers import WorkerJoined, WorkerLost
from serve_apps.engines.served import model_router
from serve_apps.engines.served.model_router import ModelRouter
from serve_apps.rollouts.generate.slime.requests import get_model_url
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.served_models import ROLE, ServedModels
from slime_events.plugins.args_view import ArgsView
from storage.nats.ports import free_port


def joined(worker: str, address: str, model: str = "judge", role: str = ROLE) -> WorkerJoined:
    return WorkerJoined(worker=worker, role=role, pid=1, facts={"model": model, "address": address})


class Echo:
    """Answers each connection with its name and everything that it got, once the client has sent all."""

    def __init__(self, name: bytes) -> None:
        self.name, self.address = name, f"127.0.0.1:{free_port()}"

    async def start(self) -> Echo:
        self.server = await asyncio.start_server(self._answer, *self.address.split(":"))
        return self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.name + await reader.read())
        writer.close()


async def ask(address: str, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(text)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_connections_go_to_the_servers_of_a_model_in_turn() -> None:
    served, own = ServedModels(), f"127.0.0.1:{free_port()}"
    servers = [await Echo(name).start() for name in (b"a", b"b", b"c")]
    for server, model in zip(servers, ("judge", "judge", "critic"), strict=True):
        served.apply(joined(server.name.decode(), server.address, model))
    served.apply(joined("engine-1", "127.0.0.1:1", role="engine"))
    async with ModelRouter(served).listening({"judge": own}):
        long = b"x" * 300_000
        assert sorted([await ask(own, long), await ask(own, long)]) == [b"a" + long, b"b" + long]
        served.apply(WorkerLost(worker="a", role=ROLE, reason=""))
        assert {await ask(own, b"1") for _ in range(3)} == {b"b1"}


async def test_a_connection_waits_for_the_first_server_and_passes_a_dead_one() -> None:
    served, own = ServedModels(), f"127.0.0.1:{free_port()}"
    async with ModelRouter(served).listening({"judge": own}):
        answer = asyncio.create_task(ask(own, b"1"))
        await asyncio.sleep(0.05)
        served.apply(joined("dead", f"127.0.0.1:{free_port()}"))
        await asyncio.sleep(0.15)
        assert not answer.done()
        server = await Echo(b"b").start()
        served.apply(joined("b", server.address))
        assert await asyncio.wait_for(answer, 5) == b"b1"


async def test_a_connection_without_servers_ends() -> None:
    own = f"127.0.0.1:{free_port()}"
    async with ModelRouter(ServedModels(), wait_s=0.2).listening({"judge": own}):
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(ask(own, b"1"), 5) == b""


async def test_a_port_that_stays_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_router, "FREE_S", 0.1)
    taken = await Echo(b"a").start()
    with pytest.raises(InvalidValue, match="judge"):
        async with ModelRouter(ServedModels()).listening({"judge": taken.address}):
            raise AssertionError


async def test_gradings_wait_until_each_model_has_a_server() -> None:
    served = ServedModels()
    served.apply(joined("a", "127.0.0.1:1"))
    waiting = asyncio.create_task(served.all_there(["judge", "critic"]))
    await asyncio.sleep(0.01)
    served.apply(joined("b", "127.0.0.1:2", role="engine"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    served.apply(joined("b", "127.0.0.1:2", "critic"))
    await asyncio.wait_for(waiting, 5)
    served.apply(WorkerLost(worker="a", role=ROLE, reason=""))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(served.all_there(["judge"]), 0.05)


def test_functions_see_the_router_by_name() -> None:
    args = ArgsView.of_run(TrainSettings(), {"judge": "10.0.0.1:4000", "critic": "[::1]:4001"})
    assert args.sglang_model_routers == {"judge": ("10.0.0.1", 4000), "critic": ("[::1]", 4001)}
    assert get_model_url(args, "judge") == "http://10.0.0.1:4000/generate"
    assert get_model_url(args, "critic", "/v1/models") == "http://[::1]:4001/v1/models"
    assert get_model_url(args, "actor").startswith("http://127.0.0.1:")
    assert not hasattr(ArgsView.of_run(TrainSettings()), "sglang_model_routers")

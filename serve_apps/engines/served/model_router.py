"""`ModelRouter`: a fixed address for each served model, from which connections go to its servers in turn.

Servers are lost and start again at other addresses. Users' functions know only the address here, as in slime, which
has a router for each model. It forwards bytes, so it works for every path of SGLang. A connection waits while no server
of its model is there.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping

from schemas.errors import InvalidValue
from slime_events.core.run.served_models import ServedModels
from storage.cancellation import end_all

WAIT_S = 600.0
"""Seconds in which a server of the model must join. Then the connection is closed."""
LOOK_S, FREE_S = 0.1, 10.0
PIECE = 1 << 16


class ModelRouter:
    """The connections to the servers of all models."""

    def __init__(self, served: ServedModels, wait_s: float = WAIT_S) -> None:
        self._served, self._wait_s = served, wait_s
        self._turns: dict[str, int] = {}

    def servers(self, model: str) -> list[str]:
        """Return the addresses of a model's servers. The first is the next one in turn."""
        addresses = self._served.addresses(model)
        turn = self._turns.get(model, 0) % max(1, len(addresses))
        return addresses[turn:] + addresses[:turn]

    @contextlib.asynccontextmanager
    async def listening(self, models: Mapping[str, str]) -> AsyncIterator[None]:
        """Serve each model at its address. models: name to host:port. Raises InvalidValue if a port stays taken."""
        async with contextlib.AsyncExitStack() as stack:
            for model, address in models.items():
                server = await _listen(self, model, address)
                stack.callback(server.close)
            yield

    async def forward(self, model: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a client with a server, until one of them closes."""
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            if (there := await self._connect(model)) is None:
                return
            its_reader, its_writer = there
            with contextlib.closing(its_writer):
                asking = asyncio.create_task(_copy(reader, its_writer))
                try:
                    await _copy(its_reader, writer)
                finally:
                    await end_all(asking)

    async def _connect(self, model: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        until = time.monotonic() + self._wait_s
        while time.monotonic() < until:
            for address in self.servers(model):
                self._turns[model] = self._turns.get(model, 0) + 1
                host, _, port = address.rpartition(":")
                with contextlib.suppress(OSError):  # it is lost, which no event says yet
                    return await asyncio.open_connection(host.strip("[]"), int(port))
            await asyncio.sleep(LOOK_S)
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until the reader's peer closes."""
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _listen(router: ModelRouter, model: str, address: str) -> asyncio.Server:
    """Listen, once a lost process no longer holds the port."""
    host, _, port = address.rpartition(":")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await router.forward(model, reader, writer)

    until = time.monotonic() + FREE_S
    while True:
        try:
            return await asyncio.start_server(forward, host.strip("[]"), int(port))
        except OSError as error:
            if time.monotonic() > until:
                raise InvalidValue(f"the router of model {model} cannot listen at {address}: {error}") from error
        await asyncio.sleep(LOOK_S)

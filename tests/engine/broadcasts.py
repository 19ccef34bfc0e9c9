"""A stored version that a sender process sends to an engine, with faults."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple, Self

from actors.trainer.transfer_sender import Listening, Over, Send, SenderProcess
from schemas.transfers import TransferBegun
from serve_apps.engines.sglang_engine import SglangEngine
from slime_events.core.child.frames import PeerEnded
from storage.weights.files import open_checkpoint
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify

_KILLED = """
import os, signal
from actors.trainer import transfer_sender
transfer_sender._begin_bucket = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
transfer_sender.main()
"""

_HELD = """
import itertools, pathlib, sys, time
from actors.trainer import transfer_sender
begin, numbers, go = transfer_sender._begin_bucket, itertools.count(), pathlib.Path(sys.argv.pop(1))
def held(*arguments):
    if next(numbers) == 5:
        go.with_suffix(".held").touch()
        while not go.exists():
            time.sleep(0.01)
    return begin(*arguments)
transfer_sender._begin_bucket = held
transfer_sender.main()
"""


class Stored:
    """A version with the tensors of a checkpoint."""

    def __init__(self, root: Path, base: Path, checkpoint: Path, version: int) -> None:
        store = WeightStore(str(root / "w"), base, durable=False)
        tensors = [(name, *tensor) for name, tensor in open_checkpoint(checkpoint).items()]
        self.version, self.digest = version, store.write(version, tensors, version - 1).digest
        self.folder = store.folder(version)

    @classmethod
    def of(cls, store: WeightStore, version: int) -> Self:
        """Return a version of a store."""
        stored = cls.__new__(cls)
        stored.version, stored.folder = version, store.folder(version)
        stored.digest = verify(stored.folder).digest
        return stored

    def damage(self) -> None:
        """Change a byte of a tensor; the manifest stays."""
        path = next(Path(self.folder).glob("*.safetensors"))
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.unlink()  # other folders may have a link to it
        path.write_bytes(data)

    @contextlib.asynccontextmanager
    async def sent(
        self, fault: str = "", *, engines: int = 1, held_until: Path | None = None, backend: str = "gloo"
    ) -> AsyncIterator[Sent]:
        """A sender that listens for this number of engines: `e0`, `e1` and the next ones.

        held_until: it stops before the sixth bucket until that file exists; then the file with suffix `.held` is there.
        """
        if fault == "other bytes":
            self.damage()
        command = [sys.executable, "-c", _KILLED] if fault == "killed within" else []
        if held_until is not None:
            command = [sys.executable, "-c", _HELD, str(held_until)]
        sender, world = SenderProcess(command), engines + 1
        try:
            request = Send(self.version, self.folder, self.digest, "127.0.0.1", world, backend, 30.0)
            listening = await asyncio.to_thread(sender.send, request)
            assert isinstance(listening, Listening)
            group = TransferBegun(
                epoch=self.version,
                version=self.version,
                address="127.0.0.1",
                port=listening.port,
                members={f"e{number}": number + 1 for number in range(engines)},
                world=world,
            )
            if fault == "killed before":
                await asyncio.to_thread(sender.end)
            yield Sent(sender, group, self.digest)
        finally:
            await asyncio.to_thread(sender.end)
            sender.close()


class Sent(NamedTuple):
    """A transfer that has begun."""

    sender: SenderProcess
    group: TransferBegun
    digest: str

    async def receive(self, engine: SglangEngine) -> tuple[str | None, str]:
        """Receive it, and return the reasons of a failure that engine and sender give."""
        return await engine.receive_weights(self.group, 1, self.digest), await self.over()

    async def over(self) -> str:
        """Return the reason of a failure that the sender gives, when it is done."""
        try:
            answer = await asyncio.to_thread(self.sender.answer)
        except PeerEnded as error:
            return str(error)
        assert isinstance(answer, Over)
        return answer.reason

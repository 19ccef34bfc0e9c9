"""The messages between a grader pool and its processes: length-prefixed MessagePack over a socket, never pickle."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

import msgspec

from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.plain_values import plain
from slime_events.plugins.rewards.outcome import Graded, RewardFailure
from slime_events.plugins.sample import Sample

if TYPE_CHECKING:  # a process that grades does without it: a seventh of the time until it grades
    import asyncio

MARK = struct.Struct("<i")
"""The number of the job that a process works on, in the page that it shares with its pool."""
IDLE = -1
_LENGTH = struct.Struct("<I")


class Setup(msgspec.Struct, frozen=True):
    """First message to a process. args: what a user's function sees beside the reward settings."""

    settings: RewardSettings
    args: dict[str, Any]
    user_dir: str


class Job(msgspec.Struct, frozen=True):
    """One call of a grader: a single sample, or a group that is graded as a whole. samples: `Sample`s, sent as dicts.

    A batch is a list of them, each encoded apart, so that it can be sent again without its neighbours.
    """

    samples: list[Any]
    group: bool = False
    evaluation: bool = False


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A process has loaded its grader. grader, digest: the run's own (empty where each sample names one)."""

    grader: str
    digest: str
    concurrent: bool


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """A process has loaded a grader that a sample names itself. key: what the sample names; grader, digest: as events
    have them.
    """

    key: str
    grader: str
    digest: str


class SetupFailed(msgspec.Struct, frozen=True, tag="setup_failed"):
    """A process could not load its grader. error: name of a class of schemas.errors."""

    error: str
    message: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """One job of the batch is graded: one outcome per sample."""

    job: int
    outcomes: list[Graded | RewardFailure]


Answer = Ready | Loaded | SetupFailed | Done

_encoder = msgspec.msgpack.Encoder(enc_hook=plain)
_jobs = msgspec.msgpack.Decoder(list[Job])


def encode(message: Any) -> bytes:
    """MessagePack; numpy and torch scalars and arrays become numbers and lists."""
    return _encoder.encode(message)


def encode_job(job: Job) -> bytes:
    """A job with every attribute of its samples, also those that a user's function added."""
    return encode(msgspec.structs.replace(job, samples=[sample.to_dict() for sample in job.samples]))


def decode_jobs(payload: bytes) -> list[Job]:
    """A batch of encoded jobs."""
    jobs = _jobs.decode(payload)
    return [msgspec.structs.replace(job, samples=[Sample.from_dict(one) for one in job.samples]) for job in jobs]


def frame(payload: bytes) -> bytes:
    """A payload with its length (u32, little-endian) in front."""
    return _LENGTH.pack(len(payload)) + payload


class Frames:
    """Payloads from a stream. After an interruption the next read continues where the last one stopped."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._length: int | None = None

    async def next(self) -> bytes:
        """The next payload. Raises asyncio.IncompleteReadError at the end."""
        if self._length is None:
            (self._length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        payload = await self._reader.readexactly(self._length)
        self._length = None
        return payload


def receive_frame(connection: socket.socket) -> bytes | None:
    """The next payload, blocking; None at the end."""
    head = _receive(connection, _LENGTH.size)
    return None if head is None else _receive(connection, _LENGTH.unpack(head)[0])


def _receive(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)

"""The frames between an engine and its host process: length-prefixed MessagePack over a socket pair."""

import asyncio
import socket
import struct
from typing import Any

import msgspec
import numpy as np

from schemas.rollouts import Sampling, StopReason, WeightSpan
from serve_apps.engine.engine import Delta

HEADER = struct.Struct("<I")


class Frame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Any frame; the tag is the class name. id: of a request to the host; its answers have the same."""


class Launch(Frame, frozen=True):
    """First frame to the host. arguments: SGLang's ServerArgs by name. fork: start the scheduler as a copy."""

    arguments: dict[str, Any]
    fork: bool


class Generate(Frame, frozen=True):
    """Answered by `Piece`s, or an `Answer` that refuses it. prompt, resume: int32 little-endian."""

    id: str
    prompt: bytes
    resume: bytes
    sampling: Sampling
    seed: int


class Score(Frame, frozen=True):
    """As `Generate`, but `tokens` (int32) are given, not sampled: answered by one `Piece` with their log-probs."""

    id: str
    prompt: bytes
    resume: bytes
    tokens: bytes
    temperature: float


class Abort(Frame, frozen=True):
    """End the response with that id."""

    id: str


class UpdateWeights(Frame, frozen=True):
    """Load `folder` as `version`; answered by `Answer`."""

    id: str
    folder: str
    version: int


class Ping(Frame, frozen=True):
    """Answered by `Answer`."""

    id: str


class Ready(Frame, frozen=True):
    """The host can take requests. processes: scheduler process ids."""

    processes: tuple[int, ...]


class Failed(Frame, frozen=True):
    """The host ends, for this reason."""

    reason: str


class Answer(Frame, frozen=True):
    """The end of a request. error: why it failed, or None."""

    id: str
    error: str | None = None


class Piece(Frame, frozen=True):
    """New tokens of a response, as in `Delta`. tokens int32, log_probs float32, little-endian."""

    id: str
    tokens: bytes
    log_probs: bytes
    spans: tuple[WeightSpan, ...]
    finish: StopReason | None = None
    text: str | None = None

    def delta(self) -> Delta:
        """The piece as the engine's caller gets it."""
        return Delta(
            tokens=np.frombuffer(self.tokens, dtype="<i4"),
            log_probs=np.frombuffer(self.log_probs, dtype="<f4"),
            spans=self.spans,
            finish=self.finish,
            text=self.text,
        )


Request = Generate | Score | UpdateWeights | Ping
ToHost = Launch | Request | Abort
FromHost = Ready | Failed | Answer | Piece

_encoder = msgspec.msgpack.Encoder()


def encode(frame: Frame) -> bytes:
    """A frame with its length before it."""
    body = _encoder.encode(frame)
    return HEADER.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The body of the next frame. Raises asyncio.IncompleteReadError at the end."""
    (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    return await reader.readexactly(length)


def receive_frame(connection: socket.socket) -> bytes:
    """The body of the next frame of a blocking socket."""
    (length,) = HEADER.unpack(connection.recv(HEADER.size, socket.MSG_WAITALL))
    return connection.recv(length, socket.MSG_WAITALL)


class Sender:
    """Writes the frames of one turn of the event loop at once: a system call for each frame was a tenth of the engine's
    time beside small models."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer, self._loop = writer, asyncio.get_running_loop()
        self._frames: list[bytes] = []

    def send(self, frame: Frame) -> None:
        """Queue a frame; it goes out at the end of this turn."""
        if not self._frames:
            self._loop.call_soon(self._flush)
        self._frames.append(encode(frame))

    def _flush(self) -> None:
        self._writer.write(b"".join(self._frames))
        self._frames.clear()

    def close(self) -> None:
        """Close the stream. Frames of this turn are dropped."""
        self._writer.close()

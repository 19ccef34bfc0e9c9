"""The frames between an engine and its host process, in MessagePack."""

import asyncio
import re
from typing import Annotated

import msgspec
import numpy as np

from schemas.doc import doc
from schemas.transfers import TransferBegun
from serve_apps.engines.engine import Delta, GenerateRequest, LogProbs, Tokens
from slime_events.core.child.frames import frame as with_length

_TYPED = re.compile(r"[\w.]{0,200}(Error|Exception|Exit)\b")


class Frame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all frames. The tag is the class name."""


class Numbered(Frame, frozen=True):
    """A request to the host, or an answer to it. Both have the request's id."""

    id: str


class Generate(Numbered, frozen=True):
    """Request for a response. The host answers with `Piece`s, or with an `Answer` that refuses it."""

    request: GenerateRequest


class Score(Numbered, frozen=True):
    """Request for the log-probs of `tokens`. The host answers with one `Piece`, or with an `Answer` that refuses it."""

    request: GenerateRequest
    tokens: Tokens


class Abort(Numbered, frozen=True):
    """Request to end the response with that id."""


class UpdateWeights(Numbered, frozen=True):
    """Request to load `folder` as `version`. The host answers with an `Answer`."""

    folder: str
    version: int


class ReceiveWeights(Numbered, frozen=True):
    """Request to receive a version from a group. The host answers with an `Answer`."""

    group: TransferBegun
    rank: int
    digest: str


class Rest(Numbered, frozen=True):
    """Request to give the device's memory back. The host answers with an `Answer`."""


class Wake(Numbered, frozen=True):
    """Request to take the device's memory again. The host answers with an `Answer`."""


class Ping(Numbered, frozen=True):
    """Request for an `Answer`."""


class Ready(Frame, frozen=True):
    """The host can take requests."""

    processes: Annotated[tuple[int, ...], doc("Scheduler process ids.")]


class Failed(Frame, frozen=True):
    """The host ends, for this reason."""

    reason: str


class Answer(Numbered, frozen=True):
    """The end of a request."""

    error: Annotated[
        str | None,
        doc("Reason for the failure, or None. Begins with the exception's type, except if SGLang refuses the request."),
    ] = None

    @property
    def is_refusal(self) -> bool:
        """Whether every engine would refuse the request."""
        return self.error is not None and _TYPED.match(self.error) is None


class Piece(Numbered, frozen=True):
    """New tokens of a response."""

    delta: Delta


Request = Generate | Score | UpdateWeights | ReceiveWeights | Rest | Wake | Ping
ToHost = Request | Abort
FromHost = Ready | Failed | Answer | Piece


def _to_bytes(array: Tokens | LogProbs) -> bytes:
    return array.astype("<f4" if array.dtype.kind == "f" else "<i4").tobytes()


def _to_array(kind: object, data: bytes) -> Tokens | LogProbs:
    return np.frombuffer(data, "<i4" if kind == Tokens else "<f4")


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_bytes)
to_host: msgspec.msgpack.Decoder[ToHost] = msgspec.msgpack.Decoder(ToHost, dec_hook=_to_array)
from_host: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost, dec_hook=_to_array)


def encode(frame: Frame) -> bytes:
    """Return a frame with its length before it."""
    return with_length(_encoder.encode(frame))


class Sender:
    """Writer that sends all frames of one iteration of the event loop at once.

    With small models, a system call for each frame took a tenth of the engine's time.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer, self._loop = writer, asyncio.get_running_loop()
        self._frames: list[bytes] = []

    def send(self, frame: Frame) -> None:
        """Queue a frame. It is sent at the end of this iteration."""
        if not self._frames:
            self._loop.call_soon(self._flush)
        self._frames.append(encode(frame))

    def _flush(self) -> None:
        self._writer.write(b"".join(self._frames))
        self._frames.clear()

    def close(self) -> None:
        """Close the stream. Frames of this iteration are dropped."""
        self._writer.close()

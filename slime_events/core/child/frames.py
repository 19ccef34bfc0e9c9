"""Frames: payloads with their length in front, over a blocking socket."""

import socket
import struct

LENGTH = struct.Struct("<Q")
"""The length of a payload. Text that a program writes by mistake reads as a length above every limit."""
MOST_BYTES = 1 << 32
"""Largest payload that a reader accepts."""
_CHUNK_BYTES = 1 << 20


class PeerEnded(ConnectionError):
    """The other process has closed the connection or ended, or has sent something that is not a frame."""


def frame(payload: bytes) -> bytes:
    """Return a payload with its length in front."""
    return LENGTH.pack(len(payload)) + payload


def payload_length(head: bytes | bytearray, most: int = MOST_BYTES) -> int:
    """Return the length in a frame's head. Raises PeerEnded if it is above `most` bytes."""
    (length,) = LENGTH.unpack(head)
    if length > most:
        raise PeerEnded(f"a frame of {length} bytes: at most {most} are allowed, or the stream holds no frames")
    return int(length)


def send_frame(connection: socket.socket, payload: bytes) -> None:
    """Send one payload. Raises OSError."""
    if len(payload) < _CHUNK_BYTES:
        connection.sendall(frame(payload))
    else:  # without a copy
        connection.sendall(LENGTH.pack(len(payload)))
        connection.sendall(payload)


def receive_frame(connection: socket.socket, most: int = MOST_BYTES) -> bytearray | None:
    """Return the next payload; None at the end of the stream, also within a frame.

    Raises PeerEnded for a payload above `most` bytes, OSError (TimeoutError too) as the socket does.
    """
    head = _receive(connection, LENGTH.size)
    return None if head is None else _receive(connection, payload_length(head, most))


def _receive(connection: socket.socket, size: int) -> bytearray | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), _CHUNK_BYTES))
        if not part:
            return None
        parts += part
    return parts

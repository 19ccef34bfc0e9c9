"""Hand files in memory from the process that made them to other processes of the same user on the same host.

    Handover("name", files)     listens at an abstract socket, until it is closed
    take("name")                connects there, and gets a descriptor of each file

A file lives as long as a process has a descriptor of it, so a reader keeps it when the maker has closed or was killed.
A socket belongs to its network namespace, so other hosts, and containers with their own network, find nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterable, Mapping

import msgspec

from schemas.errors import WeightsDamaged
from schemas.outside_json import read_json
from storage.own_socket import address, is_ours
from storage.weights.files import is_name
from storage.weights.sealed_files import is_sealed

ANSWER_S = 5.0
"""How long a peer may take for one message."""
FILES_AT_ONCE = 200
"""Files of one message; Linux sends at most 253 descriptors."""
_MESSAGE_BYTES = 128 * 1024


class _Message(msgspec.Struct, frozen=True):
    names: list[str]
    left: int


class Handover:
    """Listens. The descriptors are its own from here on. Raises OSError if another process listens at that name."""

    def __init__(self, name: str, files: Mapping[str, int]) -> None:
        self._files = files
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.bind(address(name))
        except OSError:
            self._listener.close()
            raise
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, name="weights-handover", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand out nothing more, and give up the files. Call it once."""
        self._listener.shutdown(socket.SHUT_RDWR)  # which ends the thread's wait
        self._thread.join()
        self._listener.close()
        close_all(self._files.values())

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # closed
                return
            with peer, contextlib.suppress(OSError):  # a peer that is killed meanwhile
                if is_ours(peer):
                    peer.settimeout(ANSWER_S)
                    self._send(peer)

    def _send(self, peer: socket.socket) -> None:
        names = list(self._files)
        for start in range(0, len(names), FILES_AT_ONCE):
            part = names[start : start + FILES_AT_ONCE]
            message = _Message(part, len(names) - start - len(part))
            socket.send_fds(peer, [msgspec.json.encode(message)], [self._files[name] for name in part])


def take(name: str) -> dict[str, int] | None:
    """Return a descriptor of each file by its name, which the caller closes; None if no process here hands them out.

    All are sealed. Raises WeightsDamaged if they are not, or if the process does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer, contextlib.ExitStack() as on_error:
        peer.settimeout(ANSWER_S)
        try:
            peer.connect(address(name))
        except ConnectionRefusedError:
            return None
        names, descriptors = list[str](), list[int]()
        on_error.callback(close_all, descriptors)
        try:
            left = 1 if is_ours(peer) else 0
            while left:
                data, more, *_ = socket.recv_fds(peer, _MESSAGE_BYTES, FILES_AT_ONCE)
                descriptors += more
                message = read_json(data, _Message)
                names, left = names + message.names, message.left
        except (OSError, msgspec.DecodeError) as error:
            raise WeightsDamaged(f"weights were not handed over in memory: {error or type(error).__name__}") from error
        are_complete = 0 < len(names) == len(set(names)) == len(descriptors)
        if not are_complete or not all(map(is_name, names)) or not all(map(is_sealed, descriptors)):
            raise WeightsDamaged(
                f"{len(descriptors)} files were handed over in memory for {len(names)} names, unsealed "
                "or by another user"
            )
        on_error.pop_all()
        return dict(zip(names, descriptors, strict=True))


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors of files."""
    for descriptor in descriptors:
        os.close(descriptor)

"""Abstract Unix sockets between the processes of one user on one host. They have no file, so none is left behind."""

import os
import socket
import struct


def address(name: str) -> str:
    """Return the address of the socket with this name."""
    return f"\0slime-events-{name}"


def is_ours(peer: socket.socket) -> bool:
    """Return whether the peer is a process of this user: an abstract socket has no file mode to restrict it."""
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.getuid())

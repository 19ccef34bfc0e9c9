"""The child's side of `Child`. Imports little: every child waits for these imports."""

import ctypes
import os
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1


def connect(descriptor: str, parent: str) -> socket.socket:
    """Return the connection to the process that started this one, and die with that process.

    Takes the first two arguments that a `Child` gives its program.
    """
    die_with(int(parent))
    return connection_of(descriptor)


def connection_of(descriptor: str) -> socket.socket:
    """Return the inherited socket with this number. Children of this process do not inherit it."""
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    return connection


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent's thread that started it ends. Exit if that has happened.

    This also ends a process that is stuck in C code or blocks signals. Only Linux has it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)

"""The TCP sockets of a process and its descendants that listen, out of /proc: nothing of this project's own."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from pathlib import Path
from typing import NamedTuple

import psutil

LISTENS = "0A"


class Listening(NamedTuple):
    """process: its command line."""

    address: str
    port: int
    process: str

    @property
    def on_loopback(self) -> bool:
        address = ipaddress.ip_address(self.address)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def listening(root: int) -> set[Listening]:
    """Return the sockets of process `root` and of all that it has started, now."""
    there = {inode: place for file in ("tcp", "tcp6") for inode, place in _table(Path("/proc/net") / file)}
    sockets: set[Listening] = set()
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(root)
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError):
                line = " ".join(process.cmdline())
                for link in Path(f"/proc/{process.pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        inode = os.readlink(link).removeprefix("socket:[").removesuffix("]")
                        if inode in there:
                            sockets.add(Listening(*there[inode], line))
    return sockets


def _table(file: Path) -> list[tuple[str, tuple[str, int]]]:
    """(inode, (address, port)) of each listening socket."""
    rows = (line.split() for line in file.read_text().splitlines()[1:])
    return [(row[9], _place(row[1])) for row in rows if row[3] == LISTENS]


def _place(text: str) -> tuple[str, int]:
    """Read an address of words of four bytes, each in the machine's order."""
    address, _, port = text.partition(":")
    words = bytes.fromhex(address)
    swapped = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
    return str(ipaddress.ip_address(swapped)), int(port, 16)

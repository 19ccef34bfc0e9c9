"""Where the ranks of one trainer meet."""

from __future__ import annotations

import socket


def meeting_address() -> str:
    """`host:port` of rank 0, on loopback; the port is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"

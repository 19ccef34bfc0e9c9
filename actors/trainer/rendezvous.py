"""Where the ranks of one trainer meet."""

from __future__ import annotations

from storage.nats.ports import HOST, free_port


def meeting_address() -> str:
    """`host:port` of rank 0, on loopback; the port is free now."""
    return f"{HOST}:{free_port()}"

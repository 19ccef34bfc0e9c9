"""The event log on NATS JetStream.

nats-py imports aiohttp for NATS over WebSocket, which nobody here speaks, in 0.2 s: half the start of a command that
looks one record up. So the client is imported without it; who needs aiohttp itself still imports it.
"""

import sys

if "nats" not in sys.modules and "aiohttp" not in sys.modules:
    sys.modules["aiohttp"] = None  # type: ignore[assignment]
    try:
        import nats.aio.transport  # noqa: F401
    finally:
        del sys.modules["aiohttp"]

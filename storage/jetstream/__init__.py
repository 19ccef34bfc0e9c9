"""The event log on NATS JetStream.

nats-py imports aiohttp (for NATS over WebSocket, 0.2 s) and its own JetStream client (0.02 s): half the start of a
command that looks up one record. This package uses neither, so nats-py is imported without them. Other code can still
import aiohttp, and `nats.js` is imported at its first use.
"""

import importlib
import sys
from types import ModuleType

LEFT_OUT = {"aiohttp": None, "nats.js": ModuleType("nats.js")}


def _module(name: str) -> ModuleType:
    if name != "js":
        raise AttributeError(f"module 'nats' has no attribute {name!r}")
    return importlib.import_module("nats.js")


if "nats" not in sys.modules:
    left_out = {name: module for name, module in LEFT_OUT.items() if name not in sys.modules}
    sys.modules.update(left_out)  # type: ignore[arg-type]  # None marks a missing module
    try:
        import nats.aio.transport
    finally:
        for name in left_out:
            del sys.modules[name]
    nats.__getattr__ = _module

"""The event log on NATS JetStream.

nats-py imports aiohttp, for NATS over WebSocket, in 0.2 s, and a JetStream client of its own in 0.02 s: together half
the start of a command that looks one record up. Nobody here uses either. So it is imported without them; who needs
aiohttp itself still imports it, and `nats.js` is imported where it is first used.
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
    sys.modules.update(left_out)  # type: ignore[arg-type]  # None: it is not there
    try:
        import nats.aio.transport
    finally:
        for name in left_out:
            del sys.modules[name]
    nats.__getattr__ = _module

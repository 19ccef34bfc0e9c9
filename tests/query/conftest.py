"""The small run as an opened run, and as an archive with nothing else left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.arrays import unpack
from slime_events.config.settings import TrainSettings
from slime_events.config.toml import settings_from
from slime_events.opened_run import OpenedRun
from storage.log import Readable

Open = Callable[[Readable], OpenedRun]


@pytest.fixture
def as_opened() -> Open:
    """A log in memory, opened as `open_run` would."""
    settings: TrainSettings = settings_from({})
    return lambda log: OpenedRun(log, settings, unpack, None, "memory")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder of Parquet tables that nothing else uses."""
    return tmp_path / "tables"

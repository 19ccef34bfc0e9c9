"""Settings of a run, and runs as a command opens them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from schemas.arrays import unpack
from slime_events.core.config.settings import TrainSettings
from storage.log import Readable

if TYPE_CHECKING:
    from slime_events.core.run.run_reader import OpenedRun


def settings(base: TrainSettings | None = None, /, **changes: Mapping[str, Any] | msgspec.Struct) -> TrainSettings:
    """Return settings with changes by component. Example: `settings(trainer={"lr": 0.1}, metrics=EVERYTHING)`."""
    before = base or TrainSettings()
    components = {
        name: change if isinstance(change, msgspec.Struct) else msgspec.structs.replace(getattr(before, name), **change)
        for name, change in changes.items()
    }
    return msgspec.structs.replace(before, **components)


def opened(log: Readable, settings: TrainSettings | None = None, where: str = "here") -> OpenedRun:
    """Return the run of a log as a command opens it, without a folder and without blobs."""
    from slime_events.core.run.run_reader import OpenedRun  # slow to import, and few tests need it

    return OpenedRun(log, settings or TrainSettings(), unpack, None, where)

"""Settings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from slime_events.core.config.settings import TrainSettings


def settings(base: TrainSettings | None = None, /, **changes: Mapping[str, Any] | msgspec.Struct) -> TrainSettings:
    """Return settings with changes by component. Example: `settings(trainer={"lr": 0.1}, metrics=EVERYTHING)`."""
    before = base or TrainSettings()
    components = {
        name: change if isinstance(change, msgspec.Struct) else msgspec.structs.replace(getattr(before, name), **change)
        for name, change in changes.items()
    }
    return msgspec.structs.replace(before, **components)

"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is slow; how long a property takes is no property.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

"""What holds for every test."""

from __future__ import annotations

import pytest
from hypothesis import settings

# A busy machine is slow; how long a property takes is no property.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For several workers: a file's tests go to one of them, for their fixtures' sake. What starts real engines and
    trainers all goes to one, and first: a second such run beside it would take the cores that it needs.
    """
    items.sort(key=lambda item: item.get_closest_marker("real") is None)
    for item in items:
        real = item.get_closest_marker("real") is not None
        item.add_marker(pytest.mark.xdist_group("real" if real else item.nodeid.partition("::")[0]))

"""The size of Ray's object store on our own cluster."""

from __future__ import annotations

import pytest

from slime_events.app.launch.cluster import OBJECT_STORE_BYTES, object_store_bytes


@pytest.mark.parametrize(
    ("free", "size"), [(0, OBJECT_STORE_BYTES), (2**30, OBJECT_STORE_BYTES), (2**34, 2**32), (2**40, 2**33)]
)
def test_the_object_store_grows_with_shared_memory(free: int, size: int) -> None:
    """A batch that does not fit goes to disk and back for each rank."""
    assert object_store_bytes(free) == size

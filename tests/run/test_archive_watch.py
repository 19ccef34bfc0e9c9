"""Test the two messages to the viewer of a run: that its archive is late, and that it continues."""

from __future__ import annotations

from schemas.archives import ArchiveSealed
from slime_events.app.launch.supervisor import ArchiveWatch
from tests import made

NEWS = made.accepted()
SEALED = ArchiveSealed(segment=1, first=1, last=1, sha256="", bytes=1, url="x")


def test_a_late_archive_is_said_once_and_so_is_its_return() -> None:
    watch = ArchiveWatch(60.0)
    assert watch.late(1000.0) is None, "there is nothing to archive"
    assert watch.apply(NEWS, 0.0) is None
    assert watch.late(59.0) is None
    assert "61 s behind" in (watch.late(61.0) or "")
    assert watch.late(300.0) is None
    watch.apply(NEWS, 200.0)
    assert "300 s behind" in (watch.apply(SEALED, 300.0) or "")
    assert watch.late(10_000.0) is None
    assert watch.apply(NEWS, 20_000.0) is None
    assert watch.apply(SEALED, 20_010.0) is None
    assert watch.late(30_000.0) is None

"""Whether a file is locked, asked by several at once."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from storage.file_lock import is_locked


def test_only_the_holder_is_seen_not_another_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, seen = tmp_path / "lock", list[bool]()
    flock = fcntl.flock

    def ask_meanwhile(file: int, kind: int) -> None:
        flock(file, kind)
        monkeypatch.setattr(fcntl, "flock", flock)
        seen.append(is_locked(lock))

    assert is_locked(lock) is False
    with lock.open("w") as holder:
        monkeypatch.setattr(fcntl, "flock", ask_meanwhile)
        seen.append(is_locked(lock))
        flock(holder, fcntl.LOCK_EX)
        seen.append(is_locked(lock))
    assert seen == [False, False, True]

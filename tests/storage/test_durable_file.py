"""A durable file has the bytes that were written, of which the disk gets each range before the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.weights.durable_file import AHEAD_BYTES, DurableFile

HALF = AHEAD_BYTES // 2


def test_the_disk_gets_what_was_written_since_the_last_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges, synced = [], []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, start, length, how: ranges.append((start, length)))
    monkeypatch.setattr(os, "fsync", synced.append)
    with DurableFile(tmp_path / "file") as file:
        file.write(b"head")
        file.seek(HALF, os.SEEK_CUR)  # as torch.save does, which leaves room for the elements
        file.write(b"tail")
        assert not ranges, "8 bytes"
        file.seek(4)
        file.write(b"a" * HALF)
        file.seek(0, os.SEEK_END)
        file.write(b"b" * HALF)
        assert ranges == [(0, 2 * HALF + 8)]
        file.write(b"c" * 2 * HALF)
        assert ranges[1:] == [(2 * HALF + 8, 2 * HALF)]
        assert not synced
        file.sync()
        assert synced == [file.fileno()]
    expected = b"head" + b"a" * HALF + b"tail" + b"b" * HALF + b"c" * 2 * HALF
    assert (tmp_path / "file").read_bytes() == expected


def test_a_file_system_without_ranges_waits_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    with DurableFile(tmp_path / "file") as file:
        file.write(b"a" * AHEAD_BYTES)
        file.sync()
    assert (tmp_path / "file").stat().st_size == AHEAD_BYTES


def test_a_system_without_ranges_waits_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("posix_fadvise", "POSIX_FADV_DONTNEED"):  # as on macOS
        monkeypatch.delattr(os, name)
    with DurableFile(tmp_path / "file") as file:
        file.write(b"a" * AHEAD_BYTES)
        file.sync()
    assert (tmp_path / "file").stat().st_size == AHEAD_BYTES


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        DurableFile(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"mine"

"""Tables that two processes make together are those of one, and a second process that fails costs time alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from schemas.arrays import unpack
from schemas.errors import BlobMissing
from slime_events.analysis.query import cache, making_beside
from slime_events.analysis.query.cache import TableCache, bundles, digest_of
from slime_events.analysis.query.event_tables import EVENT_TABLES
from storage.archive.reader import ArchiveReader
from tests import made
from tests.cli.small_run import RUN, events, recorded

TABLES = [EVENT_TABLES[name] for name in ("event", "rollout_completed", "token_run")]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArchiveReader:
    """Return a reader of some bundles, for which a second process is worth it."""
    monkeypatch.setattr(cache, "BUNDLE_BYTES", 1)
    monkeypatch.setattr(making_beside, "BESIDE_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    made.archived(tmp_path / "archive", recorded(list(events())), per_segment=10, closed=False)
    return ArchiveReader(f"{tmp_path}/archive", RUN)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first segment of each bundle that this process makes."""
    segments: list[int] = []
    make = cache._make

    def noted(reader: Any, bundle: Any, paths: Any, fetch: Any) -> None:
        segments.append(bundle[0].segment)
        make(reader, bundle, paths, fetch)

    monkeypatch.setattr(cache, "_make", noted)
    return segments


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def alone(reader: ArchiveReader, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    with monkeypatch.context() as patch:
        patch.setattr(making_beside, "BESIDE_BYTES", sys.maxsize)
        TableCache(folder).files(reader, TABLES, unpack)
    return contents(folder)


def test_two_processes_make_the_files_of_one(
    reader: ArchiveReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: list[int]
) -> None:
    expected = alone(reader, tmp_path / "alone", monkeypatch)
    assert len(own) == len(expected) / len(TABLES) > 2
    own.clear()
    every = list(bundles(reader.segments))
    last, make = tmp_path / "both" / digest_of(every[-1]), cache._make

    def after_the_other(reader: Any, bundle: Any, paths: Any, fetch: Any) -> None:
        deadline = time.monotonic() + 60
        while len(list(last.glob("[!.]*"))) < len(TABLES) and time.monotonic() < deadline:
            time.sleep(0.02)
        make(reader, bundle, paths, fetch)

    monkeypatch.setattr(cache, "_make", after_the_other)
    files = TableCache(tmp_path / "both").files(reader, TABLES, unpack)
    assert contents(tmp_path / "both") == expected
    assert [path.parent.name for path in files["event"]] == [digest_of(bundle) for bundle in every]
    assert own
    assert every[-1][0].segment not in own


FAULTS = {
    "is killed with a bundle": "print('ready', flush=True); input(); os.kill(os.getpid(), 9)",
    "never begins": "sys.exit(1)",
    "makes nothing": "print('ready', flush=True)\nfor _ in sys.stdin: print('ready', flush=True)",
    "hangs": "print('ready', flush=True); time.sleep(600)",
    "cannot be started": "",
    "prints something else": "print('no such archive', flush=True); time.sleep(600)",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_other_process_leaves_is_made(
    reader: ArchiveReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, own: list[int]
) -> None:
    expected = alone(reader, tmp_path / "alone", monkeypatch)
    program = f"import os, sys, time\n{FAULTS[fault]}"
    command = [sys.executable, "-S", "-c", program] if FAULTS[fault] else [str(tmp_path / "missing")]
    monkeypatch.setattr(making_beside, "own_command", lambda *_: command)
    monkeypatch.setattr(making_beside, "_WAIT_S", 0.2)
    own.clear()
    TableCache(tmp_path / "both").files(reader, TABLES, unpack)
    assert contents(tmp_path / "both") == expected
    assert sorted(own) == [segment.segment for segment in reader.segments]


def test_an_error_ends_the_other_process(
    reader: ArchiveReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    popen = subprocess.Popen

    def noted(*words: Any, **how: Any) -> Any:
        started.append(popen(*words, **how))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    monkeypatch.setattr(making_beside, "own_command", lambda *_: [sys.executable, "-S", "-c", "input()"])

    def no_blobs(array: Any) -> Any:
        raise BlobMissing("none")

    with pytest.raises(BlobMissing):
        TableCache(tmp_path / "both").files(reader, TABLES, no_blobs)
    (process,) = started
    assert process.returncode is not None


@pytest.mark.parametrize(("cores", "least"), [(1, 0), (2, 10**9)])
def test_nothing_is_started_on_one_core_or_for_little(
    reader: ArchiveReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, least: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(making_beside, "BESIDE_BYTES", least)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert TableCache(tmp_path / "both").files(reader, TABLES, unpack)["event"]

"""`TableCache`: what is kept of an archive, what is made again, and what is evicted when it is full."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from schemas.arrays import unpack
from slime_events.analysis.query import cache as kept
from slime_events.analysis.query import row_builder
from slime_events.analysis.query.cache import TableCache
from slime_events.analysis.query.event_tables import EVENT_TABLES
from storage.archive.reader import ArchiveReader
from tests import made
from tests.cli.small_run import RUN, events, recorded

SAID = recorded(list(events()))
TABLES = [EVENT_TABLES[name] for name in ("event", "reward_assigned", "token_run")]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArchiveReader:
    """Return a reader with ten events a segment, each a bundle of its own."""
    monkeypatch.setattr(kept, "BUNDLE_BYTES", 1)
    made.archived(tmp_path / "archive", SAID, per_segment=10, closed=False)
    return ArchiveReader(f"{tmp_path}/archive", RUN)


@pytest.fixture
def makes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The tables of each bundle that is made."""
    calls: list[list[str]] = []
    make = kept._make

    def noted(reader: Any, bundle: Any, paths: dict[Any, Path], fetch: Any) -> None:
        calls.append(sorted(table.name for table in paths))
        make(reader, bundle, paths, fetch)

    monkeypatch.setattr(kept, "_make", noted)
    return calls


def test_rows_of_all_bundles_are_those_of_the_log(reader: ArchiveReader, tmp_path: Path) -> None:
    files = TableCache(tmp_path / "kept").files(reader, TABLES, unpack)
    assert {name: len(paths) for name, paths in files.items()} == dict.fromkeys(files, -(-len(SAID) // 10))
    assert list(files) == [table.name for table in TABLES]
    positions = [at for path in files["event"] for at in pq.read_table(path)["position"].to_pylist()]
    assert positions == list(range(1, len(SAID) + 1))
    rewards = [row for path in files["reward_assigned"] for row in pq.read_table(path).to_pylist()]
    graded = [record for record in SAID if record.envelope.type == "reward.assigned"]
    expected = EVENT_TABLES["reward_assigned"].batch(graded, unpack)
    assert rewards == expected.to_pylist()
    assert not list((tmp_path / "kept").rglob(".*")), "nothing half made is left"


def test_what_is_kept_is_not_made_again(reader: ArchiveReader, tmp_path: Path, makes: list[list[str]]) -> None:
    cache, names = TableCache(tmp_path / "kept"), sorted(table.name for table in TABLES)
    files = cache.files(reader, TABLES, unpack)
    assert makes == [names] * len(files["event"])
    makes.clear()
    assert TableCache(tmp_path / "kept").files(reader, TABLES, unpack) == files
    assert makes == []
    files["event"][0].unlink()
    files["token_run"][1].write_bytes(b"PAR1 torn")
    assert cache.files(reader, TABLES, unpack) == files
    assert makes == [["event"], ["token_run"]]
    assert cache.files(reader, TABLES[:1], unpack) == {"event": files["event"]}


def test_what_is_asked_for_is_the_last_to_go(reader: ArchiveReader, tmp_path: Path) -> None:
    cache = TableCache(tmp_path / "kept")
    folders = [path.parent for path in cache.files(reader, TABLES, unpack)["event"]]
    for folder in folders:
        os.utime(folder, (1, 1))
    cache.files(reader, TABLES, unpack)
    assert all(folder.stat().st_mtime > 1 for folder in folders)


@pytest.mark.parametrize(("limit", "kept_of"), [(0, 0), (100, 1), (199, 1), (200, 2), (300, 3)])
def test_the_oldest_go_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, kept_of: int
) -> None:
    for age, name in enumerate(("old", "newer", "newest")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "event-0.parquet").write_bytes(bytes(60))
        (tmp_path / name / "event-1.parquet").write_bytes(bytes(40))
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    (tmp_path / "a file").write_bytes(bytes(1000))
    monkeypatch.setattr(kept, "LIMIT_BYTES", limit)
    TableCache(tmp_path)._prune(keep=set())
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == sorted(
        ["newest", "newer", "old"][:kept_of]
    )


def test_what_was_made_just_now_stays(reader: ArchiveReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LIMIT_BYTES", 0)
    (tmp_path / "kept" / "other").mkdir(parents=True)
    (tmp_path / "kept" / "other" / "event-0.parquet").write_bytes(bytes(10))
    files = TableCache(tmp_path / "kept").files(reader, TABLES, unpack)
    assert all(path.exists() for paths in files.values() for path in paths)
    assert not (tmp_path / "kept" / "other").exists()


def _full(**how: Any) -> Any:
    raise OSError("no space")


def test_a_folder_that_is_there_is_used_and_one_that_cannot_be_written_to_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert TableCache(tmp_path / "a" / "b").folder == tmp_path / "a" / "b"
    monkeypatch.setattr(kept.tempfile, "TemporaryFile", _full)
    other = TableCache(tmp_path / "a" / "b")
    assert other.folder not in (tmp_path, tmp_path / "a" / "b")
    assert other.folder.is_dir()


def test_by_default_it_lies_in_the_user_s_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "cache_folder", lambda: tmp_path / "home")
    assert TableCache().folder == tmp_path / "home" / "slime-events" / "tables"


def test_what_cannot_be_made_leaves_nothing(reader: ArchiveReader, tmp_path: Path) -> None:
    def no_blobs(array: Any) -> Any:
        raise KeyError(array)

    with pytest.raises(KeyError):
        TableCache(tmp_path / "kept").files(reader, TABLES, no_blobs)
    assert [path for path in (tmp_path / "kept").rglob("*") if path.is_file() and "token_run" in path.name] == []
    assert not list((tmp_path / "kept").rglob(".*"))


@pytest.mark.parametrize(
    ("few", "name"), [(4, "BATCH"), (lambda: 4 * max(len(record.data) for record in SAID), "BATCH_BYTES")]
)
def test_rows_are_written_some_events_at_a_time(
    reader: ArchiveReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int | Callable[[], int], name: str
) -> None:
    monkeypatch.setattr(row_builder, name, few() if callable(few) else few)
    monkeypatch.setattr(kept, "BLOCK", 2)
    monkeypatch.setattr(kept, "PART_ROWS", 1)
    files = TableCache(tmp_path / "kept").files(reader, TABLES, unpack)
    parquet = pq.ParquetFile(files["event"][0])
    sizes = [parquet.metadata.row_group(place).num_rows for place in range(parquet.num_row_groups)]
    assert sum(sizes) == 10
    assert sizes == [4, 4, 2] if name == "BATCH" else len(sizes) > 1


def test_rows_do_not_depend_on_how_many_events_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.archived(tmp_path / "archive", SAID, per_segment=25, closed=False)
    reader, tables = ArchiveReader(f"{tmp_path}/archive", RUN), list(EVENT_TABLES.values())
    whole = TableCache(tmp_path / "whole").files(reader, tables, unpack)
    assert set(map(len, whole.values())) == {1}
    for block, batch in ((1, 1), (3, 7), (1000, 2)):
        for module in (kept, row_builder):
            monkeypatch.setattr(module, "BLOCK", block)
        monkeypatch.setattr(row_builder, "BATCH", batch)
        files = TableCache(tmp_path / f"in-{block}").files(reader, tables, unpack)
        for name, (path,) in files.items():
            assert pq.read_table(path).equals(pq.read_table(whole[name][0])), name


def test_a_file_gets_its_name_once_it_is_whole(
    reader: ArchiveReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, rows = Path.replace, list[int]()

    def noted(path: Path, target: Path) -> Path:
        rows.append(pq.read_metadata(path).num_rows)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", noted)
    files = TableCache(tmp_path / "kept").files(reader, TABLES[:1], unpack)
    assert sum(rows) == len(SAID)
    assert len(rows) == len(files["event"])


def test_batches_are_written_together(reader: ArchiveReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_builder, "BATCH", 4)
    monkeypatch.setattr(kept, "BLOCK", 2)
    files = TableCache(tmp_path / "kept").files(reader, TABLES, unpack)
    parquet = pq.ParquetFile(files["event"][0])
    assert [parquet.metadata.row_group(place).num_rows for place in range(parquet.num_row_groups)] == [10]


def test_a_table_that_cannot_be_written_is_an_error_and_leaves_no_file(
    reader: ArchiveReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="no space"):
        TableCache(tmp_path / "kept").files(reader, TABLES, unpack)
    assert not list((tmp_path / "kept").rglob("*.parquet*"))
    assert gc.isenabled()

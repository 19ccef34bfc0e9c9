"""Archived and live events are one table; what is kept of an archive saves time and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.errors import ArchiveDamaged
from schemas.event import Event
from slime_events.analysis.query import cache as kept
from slime_events.analysis.query import open_tables, tables_of
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun, open_run
from storage.archive.manifest import SegmentManifest
from storage.memory_log import MemoryLog
from tests import made
from tests.cli.small_run import RUN, appends, events, finished, recorded, write
from tests.lineage.opened import archived_parent, small

SAID = finished(events())
ASKED = ("events", "rewards", "tokens")


def archive(folder: Path, events: Sequence[Event], per_segment: int) -> None:
    made.archived(folder, recorded(list(events)), per_segment=per_segment, closed=False)


async def with_archive(url: Path, log: MemoryLog) -> OpenedRun:
    """The small run in a folder, its archive elsewhere."""
    run = await small()
    settings = msgspec.structs.replace(
        run.settings, run=msgspec.structs.replace(run.settings.run, archive_url=str(url))
    )
    return OpenedRun(log, settings, run.fetch, RunFolder(url.parent, RUN), "here")


async def rows(opened: OpenedRun, cache: Path, *names: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of some tables."""
    async with tables_of(opened, cache=cache) as tables:
        return {name: sorted((await tables.sql(f"FROM {name}")).rows(), key=repr) for name in names or ASKED}


@pytest.mark.parametrize("archived", [7, len(SAID)])
async def test_archive_and_log_join_without_a_seam(tmp_path: Path, archived: int) -> None:
    archive(tmp_path / "archive", SAID[:archived], per_segment=5)
    live = await with_archive(tmp_path / "archive", await write(SAID))
    assert await rows(live, tmp_path / "tables") == await rows(await small(), tmp_path / "none")
    assert list((tmp_path / "tables").rglob("event-*.parquet"))


async def test_an_archive_of_another_history_is_not_read(tmp_path: Path) -> None:
    archive(tmp_path / "archive", [SAID[0], *SAID[2:]], per_segment=5)
    live = await with_archive(tmp_path / "archive", await write(SAID))
    assert await rows(live, tmp_path / "tables") == await rows(await small(), tmp_path / "none")
    assert not (tmp_path / "tables").exists()


async def test_an_archive_that_is_away_is_done_without(tmp_path: Path) -> None:
    archive(tmp_path / "archive", SAID, per_segment=5)
    shutil.rmtree(tmp_path / "archive" / RUN / "segments")
    live = await with_archive(tmp_path / "archive", await write(SAID))
    assert await rows(live, tmp_path / "tables") == await rows(await small(), tmp_path / "none")


async def test_a_live_run_answers_with_what_is_there_now(tmp_path: Path) -> None:
    log = await write(SAID[:20])
    live = await with_archive(tmp_path / "nowhere", log)
    async with tables_of(live, cache=tmp_path / "tables") as tables:
        count = "SELECT count(*), max(position) FROM events"
        assert (await tables.sql(count)).rows() == [(20, 20)]
        before = await tables.sql("SELECT count(*) FROM rewards")
        await log.append(appends(SAID)[20:])
        assert (await tables.sql(count)).rows() == [(len(SAID), len(SAID))]
        assert (await tables.sql("SELECT count(*) FROM rewards")).rows() == [(10,)]
        assert before.rows() < [(10,)]


async def test_what_is_kept_saves_time_and_nothing_else(tmp_path: Path) -> None:
    url, tables_folder = await archived_parent(tmp_path / "archive"), tmp_path / "tables"
    async with open_run(url) as opened:
        first = await rows(opened, tables_folder, "tokens")
        (segment,) = Path(url, "segments").iterdir()
        whole = segment.read_bytes()
        segment.write_bytes(b"")
        assert await rows(opened, tables_folder, "tokens") == first
        next(tables_folder.rglob("token_run-*.parquet")).write_bytes(b"PAR1 torn")
        with pytest.raises(ArchiveDamaged):
            await rows(opened, tables_folder, "tokens")
        segment.write_bytes(whole)
        assert await rows(opened, tables_folder, "tokens") == first
        shutil.rmtree(tables_folder)
        assert await rows(opened, tables_folder, "tokens") == first


async def test_a_home_that_cannot_be_written_to_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "tables").write_text("a file where the folder should be")
    async with open_run(await archived_parent(tmp_path / "archive")) as opened:
        assert await rows(opened, tmp_path / "tables") == await rows(await small(), tmp_path / "none")


def test_only_the_last_bundle_changes_as_an_archive_grows() -> None:
    some = [_segment(number, kept.BUNDLE_BYTES // 3 + 1) for number in range(1, 9)]
    whole = [kept.digest_of(bundle) for bundle in kept.bundles(some)]
    assert [len(bundle) for bundle in kept.bundles(some)] == [3, 3, 2]
    assert [kept.digest_of(bundle) for bundle in kept.bundles(some[:7])][:2] == whole[:2]
    assert len(set(whole)) == 3


def test_a_bundle_is_named_by_all_its_segments() -> None:
    """Keep apart two archives that differ in an earlier segment alone."""
    some = [_segment(number, 1) for number in range(1, 5)]
    (whole,) = kept.bundles(some)
    named = {kept.digest_of(whole)}
    for place in range(len(some)):
        other = msgspec.structs.replace(some[place], sha256="f" * 64)
        (bundle,) = kept.bundles([*some[:place], other, *some[place + 1 :]])
        named.add(kept.digest_of(bundle))
    assert len(named) == 1 + len(some)


def _segment(number: int, raw_bytes: int) -> SegmentManifest:
    return SegmentManifest(
        segment=number, first=number, last=number, count=1, bytes=1, raw_bytes=raw_bytes, sha256=f"{number:064d}",
        name="", parent="",
    )  # fmt: skip


async def test_what_was_not_asked_for_the_longest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, name in enumerate(("newer", "older"), 1):
        (tmp_path / "tables" / name).mkdir(parents=True)
        (tmp_path / "tables" / name / "event-0.parquet").write_bytes(bytes(10_000))
        os.utime(tmp_path / "tables" / name, (age_of := 1_700_000_000 - age, age_of))
    async with open_run(await archived_parent(tmp_path / "archive")) as opened:
        monkeypatch.setattr(kept, "LIMIT_BYTES", 19_000)
        async with tables_of(opened, cache=tmp_path / "tables") as tables:
            await tables.sql("FROM evals")
            assert [name for name in ("newer", "older") if (tmp_path / "tables" / name).exists()] == ["newer"]
            monkeypatch.setattr(kept, "LIMIT_BYTES", 0)
            assert (await tables.sql("SELECT count(*) FROM rewards")).rows() == [(10,)]
    assert len(list((tmp_path / "tables").iterdir())) == 1


async def test_a_notebook_has_a_loop_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slime_events.analysis.query.answer.find_spec", lambda name: None)
    with open_tables(await archived_parent(tmp_path / "archive"), cache=tmp_path / "tables") as tables:
        answer = tables.sql("SELECT step, sum(tokens) AS tokens FROM samples WHERE step = 1 GROUP BY step")
    assert answer.arrow().to_pylist() == [{"step": 1, "tokens": 12}]
    assert str(answer.arrow().schema.field("tokens").type) == "int64"
    assert answer.relation.filter("tokens > 12").fetchall() == []
    assert "tokens" in repr(answer)
    with pytest.raises(Exception, match="pip install pandas"):
        answer.pandas()

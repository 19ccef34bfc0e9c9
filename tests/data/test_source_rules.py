"""Test how many rows are read, in which order, and why a file has none; changed files; draws by the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from schemas.errors import DataError, ImpossibleCombination, InvalidValue, TooManyBadLines
from schemas.recorded import CommonVersion
from schemas.runs import PromptFile
from slime_events.core.config.data import DataSettings
from slime_events.core.config.evaluation import EvalSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.prompts import prompt_files
from slime_events.loop.prompts.archived_prompts import ArchivedPrompt, archived_rollouts, read_archive, read_rows
from slime_events.loop.prompts.data_file import DataFile
from slime_events.loop.prompts.draw_stats import DrawStats, Pool, PromptStats, uniform
from slime_events.loop.prompts.prompt import BadRow, PromptRow
from slime_events.loop.prompts.prompt_files import changed_files, check_prompt_files, digest_of, paths_of
from slime_events.loop.prompts.slime.dataset import Dataset
from slime_events.loop.prompts.source import PromptSource, check_first_rows, epoch_order, first_rows
from slime_events.loop.prompts.weight_ancestry import WeightAncestry
from tests import made
from tests.data.templated import Templated
from tests.data.test_archived_prompts import STARTED, accepted, completed, prompted
from tests.data.test_draw_stats import folded, prompt
from tests.lineage.opened import opened


def rows_file(folder: Path, *rows: Any, name: str = "a.jsonl") -> Path:
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def some(count: int) -> list[dict[str, Any]]:
    return [{"input": f"p{number}"} for number in range(count)]


def source_of(path: Path | str, most: int | None = None, **more: Any) -> PromptSource:
    return PromptSource(DataSettings(prompt_data=str(path), **more), most=most)


def shown(rows: list[PromptRow | BadRow]) -> list[Any]:
    return [row.text if isinstance(row, PromptRow) else row.line for row in rows]


@pytest.mark.parametrize(
    ("bounds", "most", "rows", "indexed"),
    [
        ("", None, 6, 6),
        ("", 2, 2, 2),
        ("", 9, 6, 6),
        ("@[1:4]", None, 3, 4),
        ("@[1:4]", 2, 2, 3),
        ("@[1:]", 2, 2, 3),
        ("@[0:2]", None, 2, 2),
        ("@[:-1]", None, 5, 6),
        ("@[-2:]", 1, 1, 6),
        ("@[-3:4]", None, 1, 6),
        ("@[0:0]", None, None, 0),
    ],
)
def test_no_more_rows_are_indexed_than_a_slice_needs(
    tmp_path: Path, bounds: str, most: int | None, rows: int | None, indexed: int
) -> None:
    path = f"{rows_file(tmp_path, *some(6))}{bounds}"
    if rows is None:
        with pytest.raises(DataError, match="slice is empty"):
            source_of(path, most)
        return
    source = source_of(path, most)
    assert (len(source), len(source._reader)) == (rows, indexed)
    assert len(source.in_file_order()) == rows


def test_an_order_cannot_be_changed() -> None:
    order = epoch_order(5, 1, 0)
    with pytest.raises(ValueError, match="read-only"):
        order[0] = 9
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
    assert order.dtype == np.uint32


def test_what_a_source_needs(tmp_path: Path) -> None:
    path = str(rows_file(tmp_path, *some(1)))
    with pytest.raises(InvalidValue):
        PromptSource(DataSettings())
    with pytest.raises(ImpossibleCombination):
        PromptSource(DataSettings(prompt_data=path, apply_chat_template=True))
    PromptSource(DataSettings(prompt_data=path, apply_chat_template=True, supervised=True))
    PromptSource(DataSettings(prompt_data=path, apply_chat_template=True), 1, Templated())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "it is empty"),
        (["no"], "1 bad"),
        (["[", "{}]"], "JSON list"),
    ],
)
def test_why_a_file_has_no_rows(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(DataError) as error:
        source_of(rows_file(tmp_path, *lines))
    assert message in str(error.value)
    assert ("JSON list" in str(error.value)) == (message == "JSON list")


def test_rows_by_their_number_and_place(tmp_path: Path) -> None:
    source = source_of(f"{rows_file(tmp_path, 'no', *some(5))}@[1:4]", rollout_shuffle=True)
    order = epoch_order(3, 42, 2).tolist()
    assert [source.row_at(2, place) for place in range(3)] == order
    rows = source.read(2, range(1, 3))
    assert [(row.row, row.position, row.epoch, row.line) for row in rows if isinstance(row, PromptRow)] == [
        (order[1], 7, 2, order[1] + 3),
        (order[2], 8, 2, order[2] + 3),
    ]
    selected = source.read_row(2, epoch=5, position=9)
    assert isinstance(selected, PromptRow)
    assert (selected.text, selected.row, selected.epoch, selected.position, selected.line) == ("p3", 2, 5, 9, 5)
    assert [row.position for row in source.in_file_order()] == [0, 1, 2]
    assert source.take(0, 0) == []


def test_bad_lines_and_rows_count_together(tmp_path: Path) -> None:
    path = rows_file(tmp_path, "no", {"x": 1}, {"x": 1}, *some(1))
    source = source_of(path, max_bad_lines=3)
    assert shown(source.take(0, 1)) == [2, 3, "p0"]
    assert [bad.line for bad in source.refused] == [1, 2, 3]
    with pytest.raises(TooManyBadLines):
        source_of(path, max_bad_lines=2).take(0, 1)


def test_the_first_rows_are_looked_at_before_a_run(tmp_path: Path) -> None:
    bad = {"x": 1}
    check_first_rows(DataSettings(prompt_data=str(rows_file(tmp_path, bad, bad, *some(1))), max_bad_lines=2))
    late = DataSettings(prompt_data=str(rows_file(tmp_path, bad, bad, bad, *some(1))), max_bad_lines=2)
    with pytest.raises((DataError, TooManyBadLines)):
        check_first_rows(late)
    path = rows_file(tmp_path, {"input": "a"}, bad, {"input": "b"}, {"input": "c"})
    settings = DataSettings(prompt_data=str(path), rollout_shuffle=True, max_bad_lines=2)
    assert [(row.text, row.position, row.line) for row in first_rows(settings, 3)] == [("a", 0, 1), ("b", 2, 3)]
    chat = rows_file(tmp_path, {"input": [{"role": "user", "content": "a"}]}, name="chat.jsonl")
    templated = DataSettings(prompt_data=str(chat), apply_chat_template=True)
    check_first_rows(templated)
    (row,) = first_rows(templated, 1)
    assert row.messages == [{"role": "user", "content": "a"}]
    train = rows_file(tmp_path, {"input": [*row.messages, {"role": "assistant", "content": "b"}], "metadata": {"m": 1}})
    (example,) = first_rows(DataSettings(prompt_data=str(train), supervised=True), 1)
    assert example.metadata == {"m": 1}


def settings_of(path: str, **data: Any) -> TrainSettings:
    return made.settings(data={"prompt_data": path, **data}, evaluation=EvalSettings())


def test_whose_files_are_a_run_s() -> None:
    assert paths_of(settings_of("a@[:3]")) == ["a"]
    assert paths_of(settings_of("a", data_source_path="mine.py:Mine")) == []
    assert paths_of(TrainSettings()) == []


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 100, 128, 129, 130, 200, 1000])
def test_the_blocks_that_a_digest_is_of(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """All of a file up to WHOLE bytes; of a larger one the first and the last block, and others at even distances."""
    monkeypatch.setattr(prompt_files, "BLOCK", 32)
    monkeypatch.setattr(prompt_files, "BLOCKS", 4)
    monkeypatch.setattr(prompt_files, "WHOLE", 128)
    monkeypatch.setattr(prompt_files, "AT_ONCE", 3)
    content = bytes(number % 251 for number in range(size))

    def digest(data: bytes, upto: int) -> str:
        with fsspec.filesystem("memory").open("/digests/a.jsonl", "wb") as file:
            file.write(data)
        return digest_of(DataFile("memory://digests/a.jsonl"), upto)

    whole = digest(content or b"x", size)
    starts = range(0, size, 32) if size <= 128 else [(size - 32) * block // 3 for block in range(4)]
    read = {at for start in starts for at in range(start, min(start + 32, size))}
    changed = {at for at in range(size) if digest(content[:at] + b"\xff" + content[at + 1 :], size) != whole}
    assert changed == read
    assert size == 0 or digest(content + b"more", size) == whole
    assert size == 0 or digest(content, size - 1) != whole


def test_a_file_that_has_grown_is_told_from_another(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n")
    before = {str(path): prompt_files.prompt_file(str(path))}
    settings = settings_of(str(path))
    for content, grown in ((b"one\ntwo\n", True), (b"two\n", False), (b"one", False), (b"onetwo\n", False)):
        path.write_bytes(content)
        (change,) = changed_files(before, settings)
        assert ("has grown" in change) is grown
        (note,) = check_prompt_files(before, settings, "r", accept=True)
        assert change in note
        with pytest.raises(InvalidValue):
            check_prompt_files(before, settings, "r", accept=False)
    path.write_bytes(b"one\n")
    for accept in (True, False):
        assert check_prompt_files(before, settings, "r", accept=accept) == []
    assert changed_files({"other": PromptFile(path="other", size=1, digest="")}, settings) == []


class Noted:
    """A file of nothing, that keeps what was read of it."""

    def __init__(self) -> None:
        self.read = list[list[tuple[int, int]]]()

    def read_stored(self, starts: list[int], sizes: list[int]) -> list[bytes]:
        self.read.append(list(zip(starts, sizes, strict=True)))
        return [b""] * len(starts)


def test_of_a_large_file_64_blocks_are_read_in_eights() -> None:
    """Keep what an earlier version recorded of it true."""
    block = 1 << 20
    for size, last in ((64 * block, 63 * block), (64 * block + 1, 63 * block + 1), (10**9, 10**9 - block)):
        noted: Any = Noted()
        digest_of(noted, size)
        assert [len(block) for block in noted.read] == [8] * 8
        assert (noted.read[0][0], noted.read[-1][-1]) == ((0, block), (last, block))
    few: Any = Noted()
    digest_of(few, 3 * block - 1)
    assert few.read == [[(0, block), (block, block), (2 * block, block - 1)]]


def test_the_seed_of_an_order_that_nobody_says_is_slime_s(tmp_path: Path) -> None:
    settings = DataSettings(prompt_data=str(rows_file(tmp_path, *some(9))), rollout_shuffle=True)
    by_seed = [shown(PromptSource(settings, *seed).take(0, 9)) for seed in ((), (42,), (43,))]
    assert by_seed[0] == by_seed[1] != by_seed[2]
    assert Dataset(settings.prompt_data or "", None, prompt_key="input").seed == 42


def test_a_line_that_is_no_row_has_no_place_in_the_stream(tmp_path: Path) -> None:
    (bad,) = source_of(rows_file(tmp_path, "no", *some(1))).bad_lines
    assert (bad.position, bad.epoch, bad.line) == (-1, 0, 1)


def test_uniform_numbers_depend_on_every_argument() -> None:
    numbers = [uniform(1, "f", 1), uniform(2, "f", 1), uniform(1, "g", 1), uniform(1, "f", 2)]
    assert len(set(numbers)) == 4
    assert uniform(1, "f", 1) == numbers[0]
    assert all(0 <= uniform(0, "f", number) < 1 for number in range(500))
    assert 0.4 < sum(uniform(0, "f", number) for number in range(500)) / 500 < 0.6
    assert max(uniform(0, "f", number) for number in range(500)) > 0.9


def pool(rows: int = 3, stats: dict[int, PromptStats] | None = None, **more: Any) -> Pool:
    return Pool(dict.fromkeys(range(rows), (1.0, 2.0)), stats or {}, **({"version": 5, "rest": 2} | more))


def test_a_draw_is_of_what_is_there() -> None:
    drawn_pool = pool()
    assert drawn_pool.rows == [0, 1, 2]
    drawn_pool.remove(1, refused=False)
    assert drawn_pool.rows == [0, 2]
    assert [drawn_pool.draw(at) for at in (0.0, 0.49, 0.5, 0.999999, 1.0)] == [0, 0, 2, 2, 2]
    drawn_pool.remove(2, refused=False)
    assert (drawn_pool.draw(1.0), drawn_pool.draw(0.999999)) == (0, 0)
    drawn_pool.remove(0, refused=False)
    assert (drawn_pool.draw(0.5), drawn_pool.rows, pool(0).draw(0.5)) == (None, [], None)
    drawn_pool.remove(7, refused=False)
    assert drawn_pool.drawn == 4


def test_who_was_ever_drawn() -> None:
    drawn_pool = pool(3, {0: PromptStats(times=2, version=5)})
    assert [drawn_pool.has(row) for row in range(3)] == [True, False, False]
    drawn_pool.remove(1, refused=True)
    drawn_pool.remove(0, refused=False)
    assert [drawn_pool.has(row) for row in range(3)] == [True, True, False]
    assert (drawn_pool.drawn, drawn_pool.times(0), drawn_pool.times(1), drawn_pool.times(2)) == (2, 3, 1, 0)


@pytest.mark.parametrize(("version", "rests"), [(3, False), (4, True), (5, True)])
def test_a_prompt_rests_so_many_versions(version: int, rests: bool) -> None:
    drawn_pool = pool(1, {0: PromptStats(times=1, version=version)}, version=5, rest=2)
    assert (drawn_pool.rows == []) is rests
    assert drawn_pool.longest_ago() == 0


def test_the_longest_ago_is_the_oldest_then_the_rarest_then_the_first() -> None:
    stats = {
        0: PromptStats(times=1, version=3),
        1: PromptStats(times=2, version=1),
        2: PromptStats(times=1, version=1),
        3: PromptStats(times=1, version=1),
        4: PromptStats(times=0, version=0, is_refused=True),
    }
    drawn_pool = pool(5, stats)
    chosen = list[int | None]()
    for _ in range(5):
        chosen.append(row := drawn_pool.longest_ago())
        assert row is not None
        drawn_pool.remove(row, refused=False)
    assert chosen == [2, 3, 1, 0, 2]
    assert pool(2, {0: PromptStats(times=1, version=0)}).longest_ago() == 1, "which was never drawn"


async def test_draws_are_folded_up_to_a_position() -> None:
    log = await made.log(prompt(0, 1), made.committed(0), prompt(1, 2), made.accepted("g1", samples=("a",)))
    draws = DrawStats()
    await draws.read(log, 0)
    assert (draws.position, draws.by_path) == (0, {})
    await draws.read(log, 3)
    assert (draws.position, draws.version) == (3, 1)
    assert draws.by_path == {"f": {1: PromptStats(1, 0, is_open=True), 2: PromptStats(1, 1, is_open=True)}}
    later = await folded(prompt(0, 1), made.accepted("g0", samples=("a",)))
    assert later.of("f", 1) == PromptStats(times=1, version=0)
    assert later.position == 2


def test_ancestries_are_of_published_and_trained_weights() -> None:
    line = WeightAncestry()
    line.apply(made.published(digest="a"))
    line.apply(made.committed(0))
    line.apply(STARTED)
    assert line.digests == {0: "a", 1: "d1"}


async def test_archived_rows_are_chosen_by_their_rate_and_query() -> None:
    events_ = [STARTED, *(prompted(name, label=name) for name in "abc"), prompted("d", label="d")]
    events_ += [accepted("a", 1.0, 0.0), accepted("b", 0.0), accepted("c", 1.0)]
    run = await opened(events_)

    async def chosen(groups: list[str] | None = None, **more: Any) -> list[int]:
        async def samples_where(_: Any, query: str) -> list[str]:
            assert query == "q"
            return groups or []

        where = {} if groups is None else {"archive_where": "q"}
        data = DataSettings(archive_prompts="x", **where, **more)
        return (await read_archive(run, data, samples_where, samples=1, ahead=0)).eligible

    assert await chosen() == [0, 1, 2], "the fourth has no answers"
    assert await chosen(archive_min_pass_rate=0.5, archive_max_pass_rate=0.5) == [0]
    assert await chosen(["b-s0", "c-s1"]) == [1, 2]
    with pytest.raises(DataError):
        await chosen(["d-s0"])
    rows = await read_rows(run, 1.0)
    assert [row.pass_rate for row in rows] == [0.5, 0.0, 1.0, None]
    assert ArchivedPrompt(prompted("a"), 1).pass_rate is None


async def test_no_group_with_enough_rollouts_is_said() -> None:
    run = await opened([STARTED, completed("g-s0", 5)])
    with pytest.raises(DataError):
        await archived_rollouts(run, {"g": 0}, samples=2, bound=4, ahead=2)
    rollouts = await archived_rollouts(run, {"g": 0, "other": 1}, samples=1, bound=2, ahead=2)
    assert rollouts.in_time(5, CommonVersion(5, 5)) == [0]
    assert rollouts.in_time(6, CommonVersion(5, 5)) == []

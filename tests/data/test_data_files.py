"""Files of prompts, near and far, plain and packed: ranges, rows by number, and lines in blocks of any size."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import DataError, TooManyBadLines
from slime_events.loop.prompts import reader
from slime_events.loop.prompts.data_file import DataFile, parse_path
from slime_events.loop.prompts.parquet_reader import ParquetReader, without_nulls
from slime_events.loop.prompts.prompt import BadReason, Problem
from slime_events.loop.prompts.reader import JsonlReader, bad_line, lines_of, open_reader, too_many

TEXT = b'{"q": 1}\n{"q": 2}\n{"q": 3}\n'


def file_of(folder: Path, content: bytes, name: str = "a.jsonl") -> DataFile:
    (folder / name).write_bytes(content)
    return DataFile(str(folder / name))


def far(content: bytes, name: str = "a.jsonl") -> DataFile:
    with fsspec.filesystem("memory").open(f"/files/{name}", "wb") as opened:
        opened.write(content)
    return DataFile(f"memory://files/{name}")


def test_ranges_of_a_file_near_far_and_packed(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT)
    for file, name in (
        (file_of(tmp_path, TEXT), str(tmp_path / "a.jsonl")),
        (far(TEXT), "/files/a.jsonl"),
        (file_of(tmp_path, packed, "a.jsonl.gz"), str(tmp_path / "a.jsonl")),
        (far(packed, "b.jsonl.gz"), "/files/b.jsonl"),
    ):
        assert file.read_ranges([0, 9, 3], [8, 9, 1]) == [TEXT[:8], TEXT[9:18], TEXT[3:4]]
        assert file.name == name
        for _ in range(2):
            with file.open() as opened:
                assert opened.read() == TEXT
        stored = packed if file.url.endswith(".gz") else TEXT
        assert file.stored_size() == len(stored)
        assert file.read_stored([0, 2], [2, 3]) == [stored[:2], stored[2:5]]


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name in ("none.jsonl", "pipe.jsonl", ""):
        with pytest.raises(DataError):
            DataFile(str(tmp_path / name))
    with pytest.raises(DataError):
        DataFile("no-such-store://a.jsonl")
    file = file_of(tmp_path, TEXT)
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(DataError):
        file.stored_size()
    with pytest.raises(DataError):
        file.read_ranges([0], [1])
    broken = file_of(tmp_path, b"\x1f\x8bno", "b.jsonl.gz")
    with pytest.raises(DataError), broken.open():
        pass


@pytest.mark.parametrize(
    ("path", "parsed"),
    [
        ("a", ("a", None)),
        ("a@[:]", ("a", slice(None, None))),
        ("a@[1:]", ("a", slice(1, None))),
        ("a@[:-2]", ("a", slice(None, -2))),
        ("a@[-:3]", ("a", slice(None, 3))),
        ("a@[0:0]", ("a", slice(0, 0))),
        ("a@[1]", ("a@[1]", None)),
        ("a@[1:2]b", ("a@[1:2]b", None)),
    ],
)
def test_slices_of_paths(path: str, parsed: tuple[str, slice | None]) -> None:
    assert parse_path(path) == parsed


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.booleans())
@pytest.mark.parametrize("block", [1, 5, 1 << 20])
def test_lines_are_those_of_the_file(block: int, lines: list[bytes], ended: bool) -> None:
    """Number, place and content of each, however the file is read."""
    content = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    expected, start = list[tuple[int, int, bytes]](), 0
    for number, line in enumerate(content.split(b"\n")):
        expected.append((number, start, line))
        start += len(line) + 1
    if not expected[-1][2]:
        expected.pop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "BLOCK", block)
        assert list(lines_of(far(content, "lines.jsonl"))) == expected


def test_of_a_line_that_is_too_long_as_much_is_held_as_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BLOCK", 4)
    monkeypatch.setattr(reader, "LONGEST_LINE", 8)
    lines = list(lines_of(file_of(tmp_path, b"a\n" + b"x" * 50 + b"\nb\n" + b"y" * 8 + b"\n" + b"z" * 30)))
    assert [(number, start) for number, start, _ in lines] == [(0, 0), (1, 2), (2, 53), (3, 55), (4, 64)]
    assert [line for _, _, line in lines][::2] == [b"a", b"b", lines[4][2]]
    assert lines[3][2] == b"y" * 8
    assert all(8 < len(lines[at][2]) <= 20 for at in (1, 4))
    problem = bad_line(lines[1][2])
    assert problem is not None
    assert problem.reason is BadReason.TOO_LONG
    fits = bad_line(b'{"a":12}')
    assert fits is None


def rows_of(folder: Path, content: bytes, *, stop: int | None = None, most: int = 9, used: Any = ()) -> JsonlReader:
    reader = open_reader(file_of(folder, content), stop=stop, max_bad_lines=most, used=used)
    assert isinstance(reader, JsonlReader)
    return reader


def test_rows_by_number(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'\n{"q": 1}\n[]\n \n{"q": 2}\n{"q": 3}\nno\n{"q": 4}')
    assert len(rows) == 4
    assert rows.read([3, 0, 0, 2]) == [{"q": 4}, {"q": 1}, {"q": 1}, {"q": 3}]
    assert rows.read([]) == []
    assert [rows.line(row) for row in range(4)] == [2, 5, 6, 8]
    assert [(bad.line, bad.reason) for bad in rows.bad_lines] == [(3, "not_an_object"), (7, "not_json")]


def test_no_more_rows_are_indexed_than_are_needed(tmp_path: Path) -> None:
    for stop, count in ((0, 0), (1, 1), (2, 2), (None, 3), (9, 3)):
        assert len(rows_of(tmp_path, TEXT, stop=stop)) == count
    assert rows_of(tmp_path, TEXT + b"no\n", stop=3, most=0).bad_lines == ()


def test_marks_are_left_out_wherever_files_were_put_together(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    rows = rows_of(tmp_path, mark + b'{"q": 1}\n' + mark + b'{"q": 2}\n')
    assert rows.read([0, 1]) == [{"q": 1}, {"q": 2}]


@pytest.mark.parametrize(
    ("content", "is_list"),
    [
        (b'[{"q": 1}]\n', True),
        (b' [\n{"q": 1},\n', True),
        (b'\n[\n{"q": 1}\n]\n', True),
        (b'{"q": 1}\n[1]\n', False),
        (b'no\n[1]\n{"q": 1}\n', False),
        (b"no\n", False),
        (TEXT, False),
    ],
)
def test_whether_a_file_begins_as_a_list(tmp_path: Path, content: bytes, is_list: bool) -> None:
    assert rows_of(tmp_path, content).is_list is is_list


def test_as_many_bad_lines_as_are_allowed(tmp_path: Path) -> None:
    content = b'no\n{"q": 1}\nno\n'
    assert len(rows_of(tmp_path, content, most=2)) == 1
    with pytest.raises(TooManyBadLines):
        rows_of(tmp_path, content, most=1)
    bad = rows_of(tmp_path, b"no\n" * 5 + b'{"q": 1}\n').bad_lines
    lines = str(too_many(bad, 3)).split("\n")
    assert [line.strip().split(":")[1] for line in lines[1:]] == ["1", "2", "3", "5"]


def test_a_file_that_changed_has_no_such_row_any_more(tmp_path: Path) -> None:
    for other in (b'{"q": 1}\n{"q": "2', b'{"q": 1}\nno}}}}}}\n', b'{"q": 1}\n'):
        rows = rows_of(tmp_path, TEXT)
        (tmp_path / "a.jsonl").write_bytes(other)
        first, second = rows.read([0, 1])
        assert first == {"q": 1}
        assert isinstance(second, Problem)
        assert second.reason is BadReason.NOT_JSON


def test_fields_that_nobody_reads_cost_no_row(tmp_path: Path) -> None:
    content = b'{"q": 1, "z": "\xff"}\n'
    assert rows_of(tmp_path, content, used=["q"]).read([0]) == [{"q": 1}]
    (bad,) = rows_of(tmp_path, content, used=["q", "z"]).read([0])
    assert isinstance(bad, Problem)


def test_the_reader_is_chosen_by_the_ending(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.ndjson", "a.json"):
        assert isinstance(open_reader(file_of(tmp_path, TEXT, name), stop=None, max_bad_lines=0), JsonlReader)
    with pytest.raises(DataError):
        open_reader(file_of(tmp_path, TEXT, "a.txt"), stop=None, max_bad_lines=0)
    with pytest.raises(DataError):
        open_reader(file_of(tmp_path, b"PAR1", "b.jsonl"), stop=None, max_bad_lines=0)
    with pytest.raises(DataError):
        open_reader(file_of(tmp_path, TEXT, "b.parquet"), stop=None, max_bad_lines=0)


def parquet(folder: Path, rows: list[dict[str, Any]], size: int = 2, **more: Any) -> ParquetReader:
    pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet", row_group_size=size)
    reader = open_reader(DataFile(str(folder / "a.parquet")), stop=None, max_bad_lines=0, **more)
    assert isinstance(reader, ParquetReader)
    return reader


def test_rows_of_a_parquet_file_by_number(tmp_path: Path) -> None:
    rows = parquet(tmp_path, [{"q": number} for number in range(5)])
    assert len(rows) == 5
    assert rows.read([4, 0, 1, 2, 3, 0]) == [{"q": number} for number in (4, 0, 1, 2, 3, 0)]
    assert [rows.line(row) for row in (0, 4)] == [1, 5]
    assert rows.bad_lines == ()
    pq.write_table(pa.table({"q": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    assert len(ParquetReader(DataFile(str(tmp_path / "none.parquet")))) == 0


def test_row_groups_are_read_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, read = parquet(tmp_path, [{"q": number} for number in range(6)]), list[int]()
    whole = rows._parquet.read_row_group

    class Noted:
        def read_row_group(self, group: int) -> Any:
            read.append(group)
            return whole(group)

    monkeypatch.setattr(rows, "_parquet", Noted())
    rows.read([5, 0, 4, 1, 3])
    assert sorted(read) == [0, 1, 2]
    rows.read([4, 2])
    assert len(read) == 3, "the last two stay"
    rows.read([0])
    assert len(read) == 4


def test_a_column_that_cannot_be_read_is_missed_where_it_is_used(tmp_path: Path) -> None:
    wrong = pa.array([b"\xff", b"ok"]).cast(pa.binary()).view(pa.string())
    pq.write_table(pa.table({"q": [1, 2], "z": wrong}), tmp_path / "b.parquet")
    file = DataFile(str(tmp_path / "b.parquet"))
    bad, fine = ParquetReader(file, used=["q", "z"]).read([0, 1])
    assert isinstance(bad, Problem)
    assert bad.reason is BadReason.WRONG_TYPE
    assert fine == {"q": 2, "z": "ok"}
    assert ParquetReader(file, used=["q"]).read([0, 1]) == [{"q": 1}, fine]


def test_null_fields_of_structs_are_none(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "a", "name": None}, {"role": "assistant", "content": None, "name": "b"}]
    tools = [{"f": {"content": None, "x": 1}}]
    rows = parquet(tmp_path, [{"q": chat, "t": tools, "z": tools}], sparse=["q", "t"])
    (fields,) = rows.read([0])
    assert isinstance(fields, dict)
    assert fields["q"] == [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "name": "b"}]
    assert fields["t"] == [{"f": {"x": 1}}]
    assert fields["z"] == tools
    assert without_nulls({"content": None, "a": None, "b": [None, 1]}) == {"b": [None, 1]}


def test_content_is_kept_in_messages_alone() -> None:
    value = [{"content": None, "parts": [{"content": None, "x": 1}], "f": {"content": None, "y": None}}]
    assert without_nulls(value) == [{"content": None, "parts": [{"x": 1}], "f": {}}]


def test_json_and_parquet_have_the_same_rows(tmp_path: Path) -> None:
    given_rows = [{"q": f"{number}", "n": number} for number in range(7)]
    lines = "".join(json.dumps(row) + "\n" for row in given_rows).encode()
    assert parquet(tmp_path, given_rows, 3).read(range(7)) == rows_of(tmp_path, lines).read(range(7)) == given_rows

"""Prompt files as people have them: a bad row is a bad row, with its file, line, field and reason, and ends nothing."""

from __future__ import annotations

import codecs
import datetime
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import DataError, TooManyBadLines
from schemas.prompts import PromptRejected
from slime_events.analysis.replay.equality import is_decision
from slime_events.core.config.data import DataSettings
from slime_events.core.config.evaluation import EvalSettings
from slime_events.loop.conductor.cycle import evaluation
from slime_events.loop.conductor.prompt_sampler import make_prompt_sampler
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.prompts import reader
from slime_events.loop.prompts.json_value import DEPTH
from slime_events.loop.prompts.prompt import BadReason, BadRow, Problem, PromptRow, make_prompt
from slime_events.loop.prompts.source import PromptSource, check_first_rows, eval_sources, first_rows
from slime_events.plugins.tokenizer import PIECE
from tests.data.counted import Counted
from tests.data.templated import USER, Templated, call
from tests.simulation.simulation import make_plan

GOOD = b'{"q": "2+2", "a": "4"}\n'


def opened(path: Path, tokenizer: Any = None, **more: Any) -> PromptSource:
    how = {"input_key": "q", "label_key": "a", **more}
    return PromptSource(DataSettings(prompt_data=str(path), **how), 42, tokenizer)


def file_of(folder: Path, *lines: bytes, name: str = "a.jsonl") -> Path:
    path = folder / name
    path.write_bytes(b"".join(lines))
    return path


DEEP = b"[" * 1500 + b"]" * 1500
BAD_ROWS: list[tuple[bytes, str]] = [
    (b'{"q": "caf\xe9", "a": "4"}\n', "'q' cannot be read"),
    (b'{"q": "2", "a": 1e999}\n', "'a' cannot be read: Number out of range"),
    (b'{"q": "2", "a": "4", "metadata": ' + DEEP + b"}\n", "'metadata' is nested too deeply"),
    (b'{"q": "2", "a": "4", "metadata": ' + b"[" * 70 + b"]" * 70 + b"}\n", "nested deeper than 64 levels"),
    (b'{"q": "2", "a": ' + b"1" * 5000 + b"}\n", "'a' cannot be read: Integer value out of range"),
    (b'{"q": "2", "a": "4", "tools": "{no"}\n', "'tools' must be a list of objects or its JSON"),
    (b'{"q": "2", "a": "4", "tools": "' + DEEP + b'"}\n', "'tools' must be a list of objects or its JSON"),
    (b'{"q": "2", "a": "4", "metadata": "{\\"a\\": ' + DEEP + b'}"}\n', "'metadata' must be an object or its JSON"),
    (b'{"q": {"role": "user"}, "a": "4"}\n', "'q' must be a text or a list of chat messages, not dict"),
    (b'{"q": [{"role": "user"}], "a": "4"}\n', "q[0].content: it is missing"),
    (b'{"Q": "2", "a": "4"}\n', "no field 'q' (--input-key); there is 'Q', 'a'"),
]
BAD_LINES: list[tuple[bytes, str]] = [
    (b'{"q": "2", "caf\xe9": 1}\n', "not UTF-8"),
    (b'{"q": "4 \\ud83d", "a": "8"}\n', "'q' has half a character"),
    (b'{"q": "5+5", "a": NaN}\n', "NaN is no JSON value"),
    (b'{"q": "5+5", "a": -Infinity}\n', "-Infinity is no JSON value"),
    (b'{"q": "1+3", "a": "4",}\n', "not JSON"),
    (b'{"q": "1\x00"}\n', "not JSON"),
    (b"\x00\x00\x00\n", "not JSON"),
    (b"// hard ones\n", "not JSON"),
    (b'"text"\n', "not a JSON object"),
    (b"[1, 2]\n", "not a JSON object"),
    (b"12\n", "not a JSON object"),
    (b'{"q": "1"}\r{"q": "2"}\n', "lone carriage returns"),
    (b'{"q": "half a li', "not JSON"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_ROWS)
def test_a_row_that_cannot_be_read_costs_itself_and_keeps_its_number(tmp_path: Path, line: bytes, reason: str) -> None:
    source = opened(file_of(tmp_path, GOOD, line, GOOD), Templated())
    first, bad, last = source.take(0, 2)
    assert isinstance(bad, BadRow)
    assert reason in str(bad)
    assert (bad.file, bad.line, bad.position) == (f"{tmp_path}/a.jsonl", 2, 1)
    assert isinstance(first, PromptRow)
    assert isinstance(last, PromptRow)
    assert (last.row, last.line) == (2, 3)


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_a_line_that_is_no_object_costs_itself_and_is_no_row(tmp_path: Path, line: bytes, reason: str) -> None:
    source = opened(file_of(tmp_path, GOOD, line) if not line.endswith(b"\n") else file_of(tmp_path, GOOD, line, GOOD))
    (bad,) = source.bad_lines
    assert reason in str(bad)
    assert (bad.line, len(source)) == (2, 1 + line.endswith(b"\n"))


@pytest.mark.parametrize(("line", "reason"), BAD_ROWS)
def test_every_reader_of_a_prompt_file_says_the_same(tmp_path: Path, line: bytes, reason: str) -> None:
    """The check before a start, its graders' rows, an evaluation, and rows in the file's order."""
    path = str(file_of(tmp_path, line, GOOD))
    settings = DataSettings(prompt_data=path, input_key="q", label_key="a")
    check_first_rows(settings)
    assert [row.line for row in first_rows(settings, 9)] == [2]
    source = eval_sources(EvalSettings(eval_prompt_data=["set", path]), settings, Templated())["set"].source
    for rows in (source.read(0, range(2)), source.in_file_order(), [source.read_row(0, epoch=0, position=0)]):
        assert isinstance(rows[0], BadRow)
        assert reason in str(rows[0])


def test_what_is_wrong_in_a_field_that_nobody_reads_is_no_matter(tmp_path: Path) -> None:
    lines = [b'{"q": "1", "a": "2", "x": %s}\n' % value for value in (b"1e999", b'"\xe9"', b"1" * 5000)]
    assert len(opened(file_of(tmp_path, *lines)).take(0, 3)) == 3


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_byte_order_mark_loses_no_row(tmp_path: Path, name: str) -> None:
    content = codecs.BOM_UTF8 + GOOD + b"\r\n" + codecs.BOM_UTF8 + GOOD.replace(b"\n", b"\r\n") + codecs.BOM_UTF8
    path = file_of(tmp_path, gzip.compress(content) if name.endswith("gz") else content, name=name)
    source = opened(path)
    assert [(row.row, row.line) for row in source.take(0, 2) if isinstance(row, PromptRow)] == [(0, 1), (1, 3)]
    assert source.bad_lines == ()


def _device(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.jsonl")
    return folder / "pipe.jsonl"


FILES: list[tuple[Callable[[Path], Path], str]] = [
    (lambda folder: file_of(folder, b""), "it is empty"),
    (lambda folder: file_of(folder, b"\n \r\n\n"), "it is empty"),
    (lambda folder: file_of(folder, GOOD.decode().encode("utf-16")), "UTF-16"),
    (lambda folder: file_of(folder, GOOD.decode().encode("utf-32")), "UTF-32"),
    (lambda folder: file_of(folder, gzip.compress(GOOD)), r"name it \.jsonl\.gz"),
    (lambda folder: file_of(folder, gzip.compress(GOOD * 99)[:-9], name="a.jsonl.gz"), "cannot be read"),
    (lambda folder: file_of(folder, b"\x1f\x8b" + b"\x00" * 99, name="a.jsonl.gz"), "cannot be read"),
    (lambda folder: file_of(folder, b"\x28\xb5\x2f\xfd" + b"\x07" * 99, name="a.jsonl.zst"), "cannot be read"),
    (lambda folder: file_of(folder, b'[{"q": "1", "a": "2"}]', name="a.json"), "an object per line"),
    (lambda folder: file_of(folder, b'[\n{"q": \n"1"}]', name="a.json"), "an object per line"),
    (lambda folder: file_of(folder, b'{"q": "1"}\r{"q": "2"}\r'), "lone carriage returns"),
    (lambda folder: file_of(folder, b"PAR1" + b"\x07" * 99 + b"PAR1", name="a.parquet"), "not a Parquet file"),
    (_device, "pipe or a device"),
]


@pytest.mark.parametrize(("make", "reason"), FILES)
def test_a_file_that_is_none_is_named_with_the_reason(
    tmp_path: Path, make: Callable[[Path], Path], reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        opened(make(tmp_path))


def test_a_line_without_end_is_never_in_memory_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LONGEST_LINE", 3 << 20)
    long = b'{"q": "' + b"x" * (20 << 20) + b'"}\n'
    path = file_of(tmp_path, GOOD, long, GOOD)
    seen = max(len(line) for _, _, line in reader.lines_of(reader.DataFile(str(path))))
    assert seen < 5 << 20
    source = opened(path)
    assert [(bad.line, bad.reason) for bad in source.bad_lines] == [(2, BadReason.TOO_LONG)]
    assert [row.line for row in source.take(0, 2) if isinstance(row, PromptRow)] == [1, 3]


def test_a_file_that_becomes_another_costs_its_rows(tmp_path: Path) -> None:
    path = file_of(tmp_path, *[GOOD] * 3)
    source = opened(path)
    path.write_bytes(GOOD + b"{not JSON of that length}")
    rows = source.read(0, range(3))
    assert isinstance(rows[0], PromptRow)
    assert all(isinstance(row, BadRow) and "has changed since" in row.message for row in rows[1:])


def test_counts_say_every_reason(tmp_path: Path) -> None:
    lines = [b'{"q": [{"role": "user", "content": %d}]}\n' % n for n in range(12)] + [b'{"other": 1}\n']
    source = opened(file_of(tmp_path, *lines), Templated(), label_key=None)
    with pytest.raises(DataError) as raised:
        source.take(0, 1)
    message = str(raised.value)
    assert "none of its 13 rows is usable: 12 x q[0].content: it has to be a text" in message
    assert "1 x no field 'q' (--input-key)" in message
    with pytest.raises(TooManyBadLines, match="12 x q"):
        opened(path := tmp_path / "a.jsonl", Templated(), label_key=None, max_bad_lines=12).take(0, 1)
    path.write_bytes(b"// one\n// two\n[1]\n")
    with pytest.raises(DataError, match=r"3 bad: 2 x not JSON: .*, 1 x not a JSON object"):
        opened(path)


@given(
    content=st.binary(max_size=300)
    | st.lists(st.sampled_from([*(line for line, _ in BAD_ROWS + BAD_LINES), GOOD])).map(b"".join)
)
def test_any_bytes_are_rows_or_bad_lines(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = file_of(tmp_path_factory.mktemp("any"), content)
    try:
        source = opened(path, Templated())
    except DataError:
        return
    rows = source.read(0, range(len(source)))
    assert all(isinstance(row, PromptRow | BadRow) for row in rows)
    assert {type(bad.line) for bad in source.refused} <= {int}


ROWS: list[dict[str, Any]] = [
    {"q": [USER], "a": "4", "metadata": {"level": 1}},
    {"q": [{**USER, "name": "eve"}, call({"x": 2}), {"role": "tool", "content": "4", "tool_call_id": "c"}], "a": "4"},
    {"q": [USER], "a": "4", "tools": [{"name": "add", "parameters": {"x": {"type": "number"}}}]},
    {"q": [USER], "a": "4", "tools": [{"name": "mul", "strict": True, "parameters": {"y": {"type": "number"}}}]},
]


def test_parquet_rows_are_those_of_jsonl(tmp_path: Path) -> None:
    """A list of structs has every field of every struct, as null where the row has none."""
    pq.write_table(pa.Table.from_pylist(ROWS, schema=pa.Table.from_pylist(ROWS[::-1]).schema), tmp_path / "a.parquet")
    lines = file_of(tmp_path, *(json.dumps(row).encode() + b"\n" for row in ROWS))
    for_each = [opened(path, Templated(), apply_chat_template=True) for path in (tmp_path / "a.parquet", lines)]
    parquet, jsonl = (source.take(0, len(ROWS)) for source in for_each)
    for ours, theirs in zip(parquet, jsonl, strict=True):
        assert isinstance(ours, PromptRow), ours
        assert isinstance(theirs, PromptRow), theirs
        assert ours.text == theirs.text
        assert ours.tokens is not None
        assert theirs.tokens is not None
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert (ours.row, ours.position, ours.messages, ours.tools) == (
            theirs.row,
            theirs.position,
            theirs.messages,
            theirs.tools,
        )


def test_columns_of_every_kind(tmp_path: Path) -> None:
    texts = ["1+1", "2+2"]
    table = pa.table({
        "q": pa.array(texts, pa.large_string()),
        "a": pa.array(texts).dictionary_encode(),
        "other": pa.array([datetime.datetime(2026, 1, 1)] * 2, pa.timestamp("ns")),
        "bytes": pa.array([b"\xff", b"x"]),
        "day": pa.array([datetime.date(2026, 1, 1)] * 2),
        "list": pa.array([[{"x": None}, None], None]),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    assert [row.text for row in opened(tmp_path / "a.parquet").take(0, 2) if isinstance(row, PromptRow)] == texts
    for name, reason in (("bytes", "'bytes' is a bytes"), ("day", "'day' is a date")):
        (bad, *_) = opened(tmp_path / "a.parquet", metadata_key=name).read(0, range(2))
        assert isinstance(bad, BadRow)
        assert reason in str(bad)
        assert bad.line == 1


def test_a_damaged_row_group_costs_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{"q": f"{n}+{n}", "a": "x" * 99} for n in range(8)]), path, row_group_size=4)
    meta = pq.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    start = meta.dictionary_page_offset or meta.data_page_offset
    content[start : start + meta.total_compressed_size] = b"\xff" * meta.total_compressed_size
    path.write_bytes(content)
    rows = opened(path).read(0, range(8))
    assert [isinstance(row, PromptRow) for row in rows] == [True] * 4 + [False] * 4
    assert "row group 1 cannot be read" in str(rows[4])
    assert getattr(rows[4], "line", 0) == 5


def test_an_integer_beyond_64_bits_is_a_labels_decimal_text_and_refused_elsewhere(tmp_path: Path) -> None:
    big = 123456789012345678901234567890
    line: dict[str, Any] = {"q": "1", "a": big, "metadata": {"n": 2**63 - 1}}
    (row,) = opened(file_of(tmp_path, json.dumps(line).encode())).take(0, 1)
    assert isinstance(row, PromptRow)
    assert (row.label, row.metadata) == (str(big), {"n": 2**63 - 1})
    for more, field in (
        ({"tools": [{"name": "f", "most": big}]}, "tools[0].most"),
        ({"metadata": {"n": [1, big]}}, "metadata.n[1]"),
        ({"a": {"n": big}}, "a.n"),
    ):
        (bad,) = opened(file_of(tmp_path, json.dumps(line | more).encode())).read(0, range(1))
        assert f"'{field}' is an integer of some 30 digits" in str(bad)
    assert DEPTH == 64


def test_a_feed_names_an_evaluations_bad_lines_too(tmp_path: Path) -> None:
    path = str(file_of(tmp_path, b"// one\n", GOOD, b'{"q": null, "a": "1"}\n'))
    settings = DataSettings(prompt_data=path, input_key="q", label_key="a")
    sets = eval_sources(EvalSettings(eval_prompt_data=["set", path]), settings, Templated())
    feed = PromptFeed(opened(Path(path), Templated()), sets, settings, Templated())
    malformed = feed.malformed()
    assert [(event.dataset, event.source.line) for event in malformed] == [("train", 1), ("set", 1)]
    assert not any(map(is_decision, malformed))
    (_, refused) = feed.evaluation("set", 0)
    assert isinstance(refused, PromptRejected)
    assert (refused.dataset, refused.source.line) == ("set", 3)


def test_an_evaluation_and_a_sampler_without_a_usable_row_say_every_reason(tmp_path: Path) -> None:
    path = str(file_of(tmp_path, b'{"q": null, "a": "1"}\n' * 2, b'{"a": "1"}\n'))
    settings = DataSettings(prompt_data=path, input_key="q", label_key="a", prompt_sampler="curriculum")
    sets = eval_sources(EvalSettings(eval_prompt_data=["set", path]), settings, Templated())
    feed = PromptFeed(None, sets, settings, Templated())
    with pytest.raises(DataError, match=r"3 lines were refused: 2 x the prompt in 'q' is empty, 1 x no field 'q'"):
        evaluation("set", 0, make_plan(), feed)
    sampler = make_prompt_sampler(settings, 1, PromptSource(settings), None, Templated(), None)
    assert sampler is not None
    with pytest.raises(
        DataError,
        match=r"no usable prompt is left: all prompts were refused: 2 x the prompt in 'q' is empty, 1 x no field 'q'",
    ):
        sampler.take({}, 1)


def test_a_text_of_megabytes_is_refused_before_all_of_it_is_tokenised() -> None:
    counted: Any = Counted()
    prompt = make_prompt({"input": "x" * 8_000_000}, DataSettings(input_key="input"), counted, 1_000)
    assert isinstance(prompt, Problem)
    assert prompt.reason is BadReason.TOO_LONG
    assert sum(counted.read) <= PIECE

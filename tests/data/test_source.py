"""Prompt files: order, places, and what each unusable line is called."""

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import DataError, ImpossibleCombination, TooManyBadLines
from slime_events.core.config.data import DataSettings
from slime_events.core.config.evaluation import EvalSet, EvalSettings
from slime_events.loop.prompts.prompt import BadReason, BadRow, Problem, PromptRow, make_prompt
from slime_events.loop.prompts.reader import parse_path
from slime_events.loop.prompts.source import PromptSource, epoch_order, eval_sources


class CharTokenizer:
    """One token per character; a template that shows what it was given."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) for letter in text]

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:
        assert kwargs.pop("tokenize") is False
        assert kwargs.pop("add_generation_prompt") is True
        if conversation[0]["content"] == "boom":
            raise ValueError("bad chat")
        return "|".join(turn["content"] for turn in conversation) + (json.dumps(kwargs) if kwargs else "") + ">"


def write(path: Path, lines: Sequence[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def prompts(count: int) -> list[dict[str, Any]]:
    return [{"input": f"p{index}", "label": index, "metadata": json.dumps({"n": index})} for index in range(count)]


def open_source(
    path: Path | str, tokenizer: CharTokenizer | None = None, max_len: int | None = None, **more: Any
) -> Any:
    return PromptSource(DataSettings(prompt_data=str(path), **more), 42, tokenizer, max_len)


def texts(rows: Sequence[PromptRow | BadRow]) -> list[str]:
    return [row.text for row in rows if isinstance(row, PromptRow)]


@pytest.mark.parametrize(
    ("path", "parsed"),
    [
        ("a.jsonl", ("a.jsonl", None)),
        ("a.jsonl@[1:5]", ("a.jsonl", slice(1, 5))),
        ("a.jsonl@[:]", ("a.jsonl", slice(None))),
        ("s3://b/a@[2:3].jsonl@[-2:]", ("s3://b/a@[2:3].jsonl", slice(-2, None))),
    ],
)
def test_sliced_paths(path: str, parsed: Any) -> None:
    assert parse_path(path) == parsed


@given(rows=st.integers(1, 60), seed=st.integers(0, 99), epoch=st.integers(0, 5))
def test_order_is_slimes(rows: int, seed: int, epoch: int) -> None:
    order = list(range(rows))
    random.seed(seed + epoch)
    random.shuffle(order)
    assert epoch_order(rows, seed, epoch).tolist() == order


def test_any_number_of_epochs_in_one_call(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "a.jsonl", prompts(5)), rollout_shuffle=True)
    rows = source.take(0, 12)
    assert texts(rows)[:10] == ["p3", "p1", "p2", "p4", "p0", "p1", "p4", "p3", "p2", "p0"]
    assert [row.position for row in rows] == list(range(12))


@given(steps=st.lists(st.integers(0, 9), max_size=6), shuffled=st.booleans())
def test_a_stream_is_the_same_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], shuffled: bool
) -> None:
    path = tmp_path_factory.mktemp("data") / "a.jsonl"
    lines: list[Any] = [*prompts(3), "", "{broken", *prompts(2), {"input": ""}]
    source = open_source(write(path, lines), rollout_shuffle=shuffled)
    pieces: list[Any] = []
    for step in steps:
        pieces += source.take(pieces[-1].position + 1 if pieces else 0, step)
    whole = source.take(0, sum(steps))
    assert [str(row) for row in pieces] == [str(row) for row in whole]
    assert [row.position for row in pieces] == list(range(len(whole)))


def test_what_a_row_carries(tmp_path: Path) -> None:
    lines: list[Any] = ["", {"input": [{"role": "user", "content": "hi"}], "label": 4.5, "tools": '[{"name": "t"}]'}]
    source = open_source(
        write(tmp_path / "a.jsonl", lines),
        CharTokenizer(),
        apply_chat_template=True,
        apply_chat_template_kwargs={"thinking": False},
        label_key="label",
    )
    (row,) = source.take(0, 1)
    assert row.text == 'hi{"tools": [{"name": "t"}], "thinking": false}>'
    assert row.tokens.dtype == np.int32
    assert row.tokens.tolist() == [ord(letter) for letter in row.text]
    assert (row.label, row.metadata, row.tools) == (4.5, {}, [{"name": "t"}])
    assert (source.url, row.line) == (f"{tmp_path}/a.jsonl", 2)


BAD: list[tuple[dict[str, Any], BadReason, str]] = [
    ({"label": 1}, BadReason.MISSING_FIELD, "no field 'input' (--input-key); there is 'label'"),
    ({"input": "x"}, BadReason.MISSING_FIELD, "--label-key"),
    ({"input": "", "label": 1}, BadReason.EMPTY_PROMPT, "empty"),
    ({"input": None, "label": 1}, BadReason.EMPTY_PROMPT, "empty"),
    ({"input": 3, "label": 1}, BadReason.WRONG_TYPE, "not int"),
    ({"input": ["x"], "label": 1}, BadReason.WRONG_TYPE, "chat messages"),
    ({"input": "x", "label": 1, "metadata": "{no"}, BadReason.WRONG_TYPE, "'metadata' must be an object or its JSON"),
    ({"input": "x", "label": 1, "tools": {"a": 1}}, BadReason.WRONG_TYPE, "'tools' must be a list of objects"),
    ({"input": "boom", "label": 1}, BadReason.TEMPLATE_FAILED, "ValueError: bad chat"),
    ({"input": "x" * 30, "label": 1}, BadReason.TOO_LONG, "31 tokens, at most 20"),
]


@pytest.mark.parametrize(("fields", "reason", "message"), BAD)
def test_every_unusable_row_is_named(fields: dict[str, Any], reason: BadReason, message: str) -> None:
    settings = DataSettings(label_key="label", apply_chat_template=True)
    problem = make_prompt(fields, settings, CharTokenizer(), 20)
    assert isinstance(problem, Problem)
    assert problem.reason is reason
    assert message in problem.message


def test_bad_lines_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*prompts(2), "{broken", "[1]", {"inputs": "x"}, *prompts(1)])
    source = open_source(path)
    assert [(bad.line, bad.reason) for bad in source.bad_lines] == [
        (3, BadReason.NOT_JSON),
        (4, BadReason.NOT_AN_OBJECT),
    ]
    rows = source.take(0, 3)
    assert texts(rows) == ["p0", "p1", "p0"]
    assert [(row.line, row.reason) for row in rows if isinstance(row, BadRow)] == [(5, BadReason.MISSING_FIELD)]
    assert source.take(0, 30)[-1].position == 9 * 4 + 3  # one bad row, met ten times, counts once


def test_too_many_bad_lines_stop(tmp_path: Path) -> None:
    broken = write(tmp_path / "a.jsonl", ["{", *prompts(1), "{", "{"])
    with pytest.raises(TooManyBadLines, match=r"a\.jsonl:1: not JSON"):
        open_source(broken, max_bad_lines=2)
    unusable = open_source(write(tmp_path / "b.jsonl", ["{", *[{"no": 1}] * 2, *prompts(1)]), max_bad_lines=2)
    with pytest.raises(TooManyBadLines, match="3 unusable"):
        unusable.take(0, 1)


def test_a_bad_row_counts_once_however_often_it_is_met(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "a.jsonl", [*prompts(2), {"no": 1}, {"no": 2}]), max_bad_lines=2)
    rows = source.take(0, 9)
    assert rows[-1].position == 4 * 4
    assert sum(isinstance(row, BadRow) for row in rows) == 8


def test_a_place_leads_to_the_next(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "a.jsonl", prompts(3)))
    rows = source.take(2, 3)
    assert [(row.row, row.epoch, row.position) for row in rows] == [(2, 0, 2), (0, 1, 3), (1, 1, 4)]


def test_a_file_is_given_up_after_a_whole_epoch_without_a_usable_row(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "a.jsonl", [{"no": 1}, {"no": 2}, *prompts(1)]))
    assert texts(source.take(0, 2)) == ["p0", "p0"]
    with pytest.raises(DataError, match="usable"):
        open_source(write(tmp_path / "b.jsonl", [{"no": 1}] * 3), max_bad_lines=3).take(0, 1)


@pytest.mark.parametrize(("longest", "fits"), [(2, True), (1, False), (None, True)])
def test_a_prompt_of_just_the_length_fits(longest: int | None, fits: bool) -> None:
    prompt = make_prompt({"input": "ab"}, DataSettings(), CharTokenizer(), longest)
    assert isinstance(prompt, Problem) is not fits


def test_an_evaluation_is_in_the_order_of_its_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", prompts(9))
    data = DataSettings(prompt_data="x", rollout_shuffle=True)
    eval_set = eval_sources(EvalSettings(eval_prompt_data=["a", str(path)]), data)["a"]
    assert texts(eval_set.source.take(0, 9)) == [f"p{index}" for index in range(9)]


def test_what_cannot_be_a_source(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "none.jsonl", "no file"),
        (write(tmp_path / "empty.jsonl", []), "no usable line"),
        (f"{write(tmp_path / 'few.jsonl', prompts(2))}@[5:]", "slice is empty"),
        (write(tmp_path / "a.csv", []), "ending"),
        (tmp_path, "folder"),
        (write(tmp_path / "no.parquet", ["x"]), "not a Parquet file"),
        (write(tmp_path / "no.jsonl.gz", ["x"]), "cannot be read"),
    ):
        with pytest.raises(DataError, match=message):
            open_source(path)
    with pytest.raises(DataError, match="none of its 2 rows is usable"):
        open_source(write(tmp_path / "all.jsonl", [{"a": 1}] * 2)).take(0, 1)
    with pytest.raises(ImpossibleCombination, match="tokenizer"):
        open_source(tmp_path / "few.jsonl", apply_chat_template=True)


@pytest.mark.parametrize(("bounds", "texts_"), [("1:3", "p1 p2"), ("-2:", "p4 p5"), (":2", "p0 p1"), ("-9:1", "p0")])
def test_slices_count_rows(tmp_path: Path, bounds: str, texts_: str) -> None:
    lines: list[Any] = prompts(6)
    lines.insert(1, "{broken")
    source = open_source(f"{write(tmp_path / 'a.jsonl', lines)}@[{bounds}]")
    assert texts(source.take(0, len(source))) == texts_.split()


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.jsonl", prompts(40))
    content = plain.read_bytes()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(content))
    (tmp_path / "crlf.jsonl").write_bytes(content.replace(b"\n", b"\r\n").rstrip())
    pq.write_table(pa.Table.from_pylist(prompts(40)), tmp_path / "a.parquet", row_group_size=7)
    with fsspec.open("memory://data/a.jsonl", "wb") as remote:
        remote.write(content)
    first_seen = None
    for path in (*sorted(tmp_path.iterdir()), "memory://data/a.jsonl"):
        rows = open_source(path, label_key="label", rollout_shuffle=True).take(0, 50)
        seen = [(row.row, row.text, row.label, row.metadata, row.line) for row in rows]
        first_seen = first_seen or seen
        assert seen == first_seen, path
        assert (rows[-1].epoch, rows[-1].position) == (1, 49)


def test_lines_longer_than_a_block(tmp_path: Path) -> None:
    lines = [{"input": letter * 1_500_000} for letter in "abc"]
    source = open_source(write(tmp_path / "a.jsonl", lines))
    assert [text[-1] for text in texts(source.take(1, 2))] == ["b", "c"]


def test_evaluation_sets(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"q": "one", "a": 1}])
    settings = EvalSettings(eval_prompt_data=["aime", str(path), "half", f"{path}@[:1]"], eval_input_key="q")
    sources = eval_sources(settings, DataSettings(prompt_data="x", rollout_shuffle=True, label_key="a"))
    assert [(name, len(eval_set.source)) for name, eval_set in sources.items()] == [("aime", 1), ("half", 1)]
    (row,) = sources["aime"].source.take(0, 1)
    assert isinstance(row, PromptRow)
    assert (row.text, row.label) == ("one", 1)


def test_a_set_is_read_by_its_own_keys(tmp_path: Path) -> None:
    """Take keys that the set leaves out from the flags; a label key of "" means that it has no labels."""
    line = {"q": "one", "a": 1, "input": "two", "label": 2, "more": {"x": 1}, "metadata": {"x": 2}, "t": [{"n": 1}]}
    path = str(write(tmp_path / "a.jsonl", [line]))
    own = EvalSet(path=path, input_key="q", label_key="a", metadata_key="more", tool_key="t")
    sets = {"own": own, "flags": EvalSet(path=path), "bare": EvalSet(path=path, label_key="")}
    settings = EvalSettings(eval_sets=sets, eval_prompt_data=["no", "more"])
    sources = eval_sources(settings, DataSettings(label_key="label"))
    rows = {name: eval_set.source.read(0, range(1))[0] for name, eval_set in sources.items()}
    seen = {name: (row.text, row.label, row.metadata, row.tools) for name, row in rows.items()}
    assert seen == {
        "own": ("one", 1, {"x": 1}, [{"n": 1}]),
        "flags": ("two", 2, {"x": 2}, None),
        "bare": ("two", None, {"x": 2}, None),
    }


@pytest.mark.parametrize(("own", "run", "fits"), [(1, 3, False), (None, 3, True), (None, 1, False), (3, 1, True)])
def test_questions_have_a_longest_of_their_own(tmp_path: Path, own: int | None, run: int, fits: bool) -> None:
    path = write(tmp_path / "a.jsonl", [{"input": "ab"}])
    settings = EvalSettings(eval_prompt_data=["a", str(path)], eval_max_prompt_len=own)
    eval_set = eval_sources(settings, DataSettings(), CharTokenizer(), run)["a"]
    (row,) = eval_set.source.read(0, range(1))
    assert isinstance(row, PromptRow) is fits

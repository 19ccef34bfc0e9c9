"""Lineage as text, JSON, SVG and HTML."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from slime_events.analysis.lineage import picture
from slime_events.analysis.lineage.lineage import Element, Kind, Lineage, LineageQuery
from slime_events.analysis.lineage.picture import STRIP_CELLS, colour, html, rows_of, svg
from slime_events.analysis.lineage.resolve import NEWEST, lineage
from slime_events.app.cli.main import main
from slime_events.app.cli.render.lineage_text import lineage_text
from tests.lineage.long import long_run
from tests.lineage.opened import archived_parent, small

PAGE = Path(__file__).parents[2] / "docs" / "lineage.md"


async def _of(kind: Kind, value: object, depth: int = 1) -> Lineage:
    return await lineage(await small(), LineageQuery(kind=kind, value=str(value), depth=depth))


def _titles(drawn: str) -> list[str]:
    tree = ElementTree.fromstring(drawn)
    return [element.text or "" for element in tree.iter() if element.tag.endswith("title")]


async def test_a_picture_says_all_under_the_pointer() -> None:
    answer = await _of(Kind.VERSION, 2)
    titles = _titles(svg(answer))
    for sample in answer.samples:
        assert any(title.startswith("tokens 0 to") and sample.sample in title for title in titles)
    assert "v2 of small: selected\ndigest d2" in titles
    assert any(title.startswith("train.jsonl\n") for title in titles)


async def test_rows_are_as_coarse_as_there_is_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "FEW_SAMPLES", 2)
    assert [row.label for row in rows_of(await _of(Kind.VERSION, 2))] == ["inbox:k1", "train.jsonl:1"]
    both = rows_of(await _of(Kind.VERSION, 2, depth=0))
    assert [(row.label, row.target, len(row.cells)) for row in both] == [
        ("step 0", "step 0 → v1", 2),
        ("step 1", "step 1 → v2", 2),
    ]
    monkeypatch.setattr(picture, "MOST_ROWS", 1)
    (all_of_it,) = rows_of(await _of(Kind.VERSION, 2, depth=0))
    assert (all_of_it.label, [cell.value for cell in all_of_it.cells]) == ("0 to 1", [0.5, 0.5])


async def test_a_long_line_of_versions_fits() -> None:
    answer = await lineage(await long_run(3 * STRIP_CELLS), LineageQuery(kind=Kind.VERSION, value=NEWEST))
    strip = [title for title in _titles(svg(answer)) if re.match(r"v\d+( to v\d+)? of long", title)]
    assert len(strip) <= STRIP_CELLS
    assert strip[0].startswith("v0 to v3 of long: ancestor")
    assert strip[-1].startswith(f"v{3 * STRIP_CELLS} of long: selected")


def test_colours_go_from_low_to_high() -> None:
    assert [colour(value, (0.0, 1.0)) for value in (-1.0, 0.0, 0.5, 1.0, 2.0, None)] == [
        "#c85430", "#c85430", "#f2e8cf", "#1e6e96", "#1e6e96", "#c9c9c9",
    ]  # fmt: skip


async def test_a_page_needs_nothing_else() -> None:
    answer = await _of(Kind.SAMPLE, "inbox-aa-s1")
    page = html(answer, lineage_text(answer))
    assert svg(answer) in page
    assert "inbox-aa-s1 of run small" in page
    assert not re.findall(r"(?:src|href)=", page)


@pytest.mark.parametrize(
    ("kind", "value", "lines"),
    [
        (Kind.VERSION, 2, ["step 1 of run small from v1: 2 prompts, 4 samples, 24 tokens, mean reward 0.500",
                           "ancestors   v0 to v1 of small", "inbox:k1       inbox-aa"]),
        (Kind.VERSION, 0, ["nobody: the run begins with it"]),
        (Kind.SAMPLE, "inbox-aa-s1", ["made by       v0[0:2] v1[2:3], 3 tokens, length", "step 1 -> v2",
                                      "1 for each trained token (grpo)"]),
        (Kind.GROUP, "train-0-000002", ["in no batch of this lineage", "trained into  no version"]),
        (Kind.SOURCE, "train.jsonl", ["4, with 8 samples, 6 of them in a batch", "descendants   v2 of small"]),
    ],
)  # fmt: skip
async def test_text_tells_it_in_words(kind: Kind, value: object, lines: list[str]) -> None:
    text = lineage_text(await _of(kind, value))
    for words in lines:
        assert words in text


async def test_the_command_writes_what_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = await archived_parent(tmp_path / "archive")
    expected = await _of(Kind.SAMPLE, "inbox-aa-s1")

    def run(*words: str) -> str:
        assert main(["lineage", where, *words]) == 0
        return capsys.readouterr().out

    printed = await asyncio.to_thread(run, "--sample", "inbox-aa-s1", "--format", "json")
    answer = msgspec.json.decode(printed, type=Lineage)
    assert msgspec.structs.replace(answer, runs=expected.runs) == expected
    assert lineage_text(expected).splitlines()[0] in await asyncio.to_thread(run, "--sample", "inbox-aa-s1")
    out = tmp_path / "newest.svg"
    assert "1 steps, 4 samples" in await asyncio.to_thread(run, "--out", str(out))
    assert ElementTree.fromstring(out.read_text(encoding="utf-8")).tag.endswith("svg")


def test_the_page_names_every_field() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for element in Element.__subclasses__():
        for field in element.__struct_fields__:
            assert f"`{field}`" in page, f"{element.__name__}.{field}"

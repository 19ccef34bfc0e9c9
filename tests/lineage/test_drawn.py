"""A picture of a lineage is, shape by shape and title by title, the kept one."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from slime_events.analysis.lineage.picture import html, rows_of, svg
from tests.lineage.pictures import ANSWERS, FILES, many_samples, many_steps


@pytest.mark.parametrize("name", ANSWERS)
def test_a_picture_is_the_kept_one(name: str) -> None:
    kept = (FILES / f"{name}.svg").read_text(encoding="utf-8")
    assert svg(ANSWERS[name]) == kept, "python -m tests.lineage.pictures renews it"


@pytest.mark.parametrize("name", ANSWERS)
def test_all_of_a_picture_lies_inside_of_it_and_no_box_on_another(name: str) -> None:
    tree = ElementTree.fromstring(svg(ANSWERS[name]))
    width, height = float(tree.attrib["width"]), float(tree.attrib["height"])
    rects = [element for element in tree.iter() if element.tag.endswith("rect")]
    sides = [[float(rect.attrib.get(side, 0)) for side in ("x", "y", "width", "height")] for rect in rects]
    assert all(x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in sides)
    boxes = sorted((x, y, h) for rect, (x, y, _, h) in zip(rects, sides, strict=True) if rect.get("class") == "box")
    assert all(y + h <= below for (x, y, h), (other, below, _) in pairwise(boxes) if x == other)


def test_samples_have_rows_of_their_own_while_they_are_few() -> None:
    few, more = rows_of(many_samples(16)), rows_of(many_samples(17))
    assert [row.label for row in few] == [f"g{number}-s0" for number in range(16)]
    assert [row.label for row in more] == [f"{number % 3}.jsonl:7" for number in range(17)]


def test_several_steps_have_rows_of_their_own_and_what_was_never_trained_leads_nowhere() -> None:
    assert [row.label for row in rows_of(many_steps(2, each=9))] == ["step 0", "step 1"]
    assert [row.target for row in rows_of(ANSWERS["few_samples"])] == ["step 4 → v5", "", "step 7, not committed"]


def test_steps_share_rows_where_there_are_more_than_have_room() -> None:
    each, shared = rows_of(many_steps(80)), rows_of(many_steps(81))
    assert [row.label for row in each] == [f"step {number}" for number in range(80)]
    assert [row.label for row in shared[:-1]] == [f"{n} to {n + 1}" for n in range(0, 80, 2)]
    assert shared[-1].label == f"{80} to {80}"
    assert {len(row.cells) for row in shared[:-1]} == {2}
    assert [row.target for row in shared[:2]] == ["step 1 → v2", "step 3 → v4"]
    assert [cell.value for cell in shared[1].cells] == [2 / (81), 3 / (81)]


def test_a_title_under_the_pointer_tells_the_beginning_of_a_prompt() -> None:
    row = rows_of(ANSWERS["seventeen_rows"])[0]
    assert row.title.endswith("\n<g0> " + "x" * 295)


def test_a_page_holds_the_picture_and_the_text_as_text() -> None:
    answer = ANSWERS["few_samples"]
    page = html(answer, "a < b\n\x1b[31m")
    assert svg(answer) in page
    assert "<pre>a &lt; b" in page
    assert "\x1b" not in page

"""The committed page and types are those of their sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from serve_apps.http.console.openapi import schemas
from serve_apps.http.console.pages import DIST
from tests.console.served import client_of, small
from tools.console_build import CLIENT, build, files_of
from tools.console_types import PAGE, types_text

FILE_LINES = 400
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
SOURCES = [*CLIENT.glob("src/**/*.ts"), *CLIENT.glob("src/**/*.tsx")]


def test_the_types_are_those_of_the_answers() -> None:
    assert PAGE.read_text(encoding="utf-8") == types_text(), "python -m tools.console_types renews them"


def test_the_page_has_no_inline_script_or_style_and_nothing_of_elsewhere() -> None:
    page = (DIST / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<style|style=|\bon\w+=|<script(?![^>]* src=\"/assets/)", page) == []
    assert re.findall(r"(?:src|href)=\"(?!/assets/)", page) == []


def test_no_text_of_a_run_becomes_markup() -> None:
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        assert not MARKUP.search(source), path


def test_files_of_the_client_are_short() -> None:
    assert len(SOURCES) > 10
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES if path != PAGE}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES} == {}


async def test_every_answer_in_the_document_has_its_schema() -> None:
    async with client_of(await small()) as client:
        document = (await client.get("/openapi.json")).json()
    assert len(document["paths"]) >= 11
    answers = [path["get"]["responses"]["200"]["content"]["application/json"] for path in document["paths"].values()]
    names = {answer["schema"]["$ref"].rpartition("/")[2] for answer in answers}
    assert names <= schemas().keys()


def test_no_two_structs_of_the_answers_share_a_name() -> None:
    """msgspec names such structs by their modules, and the routes would name one of them wrongly."""
    assert [name for name in schemas() if not name[0].isupper()] == []


@pytest.mark.soak
def test_the_built_page_is_that_of_its_sources(tmp_path: Path) -> None:
    """Without npm this fails: a page that nobody can build again would look as if it were checked."""
    build(tmp_path)
    assert files_of(tmp_path) == files_of(DIST)

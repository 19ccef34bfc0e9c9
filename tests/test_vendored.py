"""Canaries: what product code uses of the inside of pinned packages is still there, and docs/vendored.md lists it.

A test that fails here names the target that another version has moved: see its row in storage/reaches.toml.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import reaches as reaches_module
from storage.jetstream import client
from storage.jetstream.fast_client import FastClient
from storage.reaches import Reach, is_there, missing, reaches

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "vendored.md"
PRODUCT = ("schemas", "storage", "slime_events", "actors", "serve_apps")
PRIVATE = re.compile(
    r"\b(?:ray|torch|nats|sglang|megatron|fsspec|msgspec|transformers)(?:\.\w+)*\._[a-z]\w*"  # also torch._C
    r"|^\s*from (?:ray|torch|nats|sglang|megatron|fsspec)[\w.]* import (?:\([^)]*?|[^(\n]*)\b_[a-z]\w+"
    r"|super\(\)\._[a-z]\w*|def _launch_\w+",
    re.MULTILINE,
)
TARGETS = sorted({target for reach in reaches() for target in reach.targets})


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_there(target: str) -> None:
    there = is_there(target)
    if there is None:
        pytest.skip("its package is not installed")
    assert there, f"{target} has moved: mend {', '.join(r.where[0] for r in reaches() if target in r.targets)}"


@pytest.mark.parametrize(
    ("target", "there"),
    [
        ("asyncio.events:AbstractEventLoop.call_soon(callback)", True),
        ("asyncio.events:AbstractEventLoop.call_soon(callback, nothing)", False),
        ("asyncio.events:AbstractEventLoop.nothing", False),
        ("asyncio.events:Nothing.call_soon", False),
        ("asyncio.events:Handle._callback", True),
        ("asyncio.nothing:Handle", False),
        ("no_such_package.events:Handle", None),
    ],
)
def test_how_a_target_is_looked_for(target: str, there: bool | None) -> None:
    assert is_there(target) is there


def _row(reach: Reach) -> str:
    targets = "<br>".join(f"`{target}`" for target in reach.targets) or "no Python"
    where = "<br>".join(f"`{file}`" for file in reach.where)
    return f"| {reach.package} | {targets} | {where} | {reach.why} | {reach.gain} | {reach.issue or 'none known'} |"


def test_the_page_shows_the_table() -> None:
    shown = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert shown == [_row(reach) for reach in reaches()], "copy the rows of storage/reaches.toml to docs/vendored.md"


def test_the_table_names_the_files_that_reach() -> None:
    files = {file for reach in reaches() for file in reach.where}
    assert {file for file in files if not (ROOT / file).is_file()} == set()
    paths = [path for package in PRODUCT for path in (ROOT / package).rglob("*.py")]
    reaching = {str(path.relative_to(ROOT)) for path in paths if PRIVATE.search(path.read_text(encoding="utf-8"))}
    assert reaching - files == set(), "give each a row in storage/reaches.toml"


@pytest.fixture
def changed_inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """nats-py without the method that the fast client overrides."""
    moved = Reach(
        package="nats-py", targets=("nats.aio.client:Client._moved",), where=(client.FAST_CLIENT,), why="", gain=""
    )
    monkeypatch.setattr(reaches_module, "reaches", lambda: (moved,))
    monkeypatch.setattr(client, "KNOWN_INSIDE", "another")
    client._changed_inside.cache_clear()
    yield
    client._changed_inside.cache_clear()


@pytest.mark.usefixtures("changed_inside")
async def test_the_plain_client_takes_over_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        clients = [client.new_client() for _ in range(3)]
    assert {type(each) for each in clients} == {client.PlainClient}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert missing() == ["nats.aio.client:Client._moved"]


def test_the_version_that_is_not_looked_into_is_the_pinned_one() -> None:
    pinned = (ROOT / "requirements" / "constraints.txt").read_text().splitlines()
    assert f"nats-py=={client.KNOWN_INSIDE}" in pinned


async def test_the_fast_client_is_the_usual_one() -> None:
    assert type(client.new_client()) is FastClient

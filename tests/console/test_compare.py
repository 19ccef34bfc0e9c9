"""*Compare*: the comparison of the command, over two served runs."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Sequence

import httpx
import msgspec
import pytest
import pytest_asyncio

from schemas.event import Event
from schemas.rewards import RewardAssigned
from slime_events.analysis.compare.compare import compare
from slime_events.analysis.query import tables_of
from slime_events.core.run.run_reader import OpenedRun
from slime_events.model.json_values import plain
from storage.memory_log import MemoryLog
from tests import made
from tests.cli.small_run import GROUPS
from tests.compare.pairs import changed, events
from tests.console.served import Memory, client_of, get
from tests.lineage import opened

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAMPLE = f"{GROUPS[3]}-s1"


def _other() -> Sequence[Event]:
    """The events of the run with another reward in step 1."""
    return changed(events(), RewardAssigned, lambda event: event.sample == SAMPLE, value=0.25)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runs() -> dict[str, OpenedRun]:
    names: dict[str, Sequence[Event]] = {"a": events(), "b": _other(), "unsealed": events()[:12]}
    return {name: await opened.opened(log, name) for name, log in names.items()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(runs: dict[str, OpenedRun]) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(Memory(runs)) as client:
        yield client


async def test_the_answer_is_the_comparison_of_the_command(pair: httpx.AsyncClient, runs: dict[str, OpenedRun]) -> None:
    answer = await get(pair, "/api/compare", a="a", b="b")
    expected = await compare(runs["a"], runs["b"])
    assert answer["comparison"] == msgspec.json.decode(msgspec.json.encode(plain(expected)))
    first = answer["comparison"]["first"]
    assert (first["kind"], first["step"], first["sample"], first["a"], first["b"]) == ("reward", 1, SAMPLE, 1.0, 0.25)
    assert shlex.split(answer["command"]) == ["slime-events", "compare", "a", "b"]


async def test_the_query_gives_the_distributions(pair: httpx.AsyncClient, runs: dict[str, OpenedRun]) -> None:
    answer = await get(pair, "/api/compare", a="a", b="a")
    assert answer["comparison"]["first"] is None
    async with tables_of(runs["a"]) as tables:
        rows = (await tables.sql(answer["sql"])).arrow().to_pylist()
    steps = answer["comparison"]["steps"]
    assert [row["step"] for row in rows] == [step["step"] for step in steps] == [0, 1]
    for row, step in zip(rows, steps, strict=True):
        for name, figures in (("reward", step["a"]["rewards"]), ("length", step["a"]["lengths"])):
            assert [row[f"{name}_mean"], row[f"{name}_std"]] == pytest.approx([figures["mean"], figures["std"]])
            assert row[f"{name}_quantiles"] == pytest.approx([figures[level] for level in ("p10", "p50", "p90")])


async def test_runs_without_a_common_step(pair: httpx.AsyncClient) -> None:
    comparison = (await get(pair, "/api/compare", a="a", b="unsealed"))["comparison"]
    assert (comparison["b"]["last_step"], comparison["steps"]) == (None, [])


async def test_a_run_that_has_grown_is_compared_again(pair: httpx.AsyncClient, runs: dict[str, OpenedRun]) -> None:
    before = await get(pair, "/api/compare", a="unsealed", b="unsealed")
    log = runs["unsealed"].log
    assert isinstance(log, MemoryLog)
    await made.say(log, made.submitted("new"))
    after = await get(pair, "/api/compare", a="unsealed", b="unsealed")
    assert after["a_position"] == after["b_position"] == before["a_position"] + 1


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 422),
        ({"a": "a"}, 422),
        ({"a": "a", "b": "none"}, 404),
        ({"a": "none", "b": "a"}, 404),
        ({"a": "a", "b": ""}, 404),
        ({"a": "a", "b": "../a"}, 404),
        ({"a": "a", "b": "/etc"}, 404),
        ({"a": "a", "b": "s3://bucket/archive/a"}, 404),
        ({"a": "a", "b": "\u202e\x00"}, 404),
    ],
)
async def test_only_served_runs_are_compared(pair: httpx.AsyncClient, query: dict[str, str], status: int) -> None:
    answer = await pair.get("/api/compare", params=query)
    assert (answer.status_code, isinstance(answer.json()["error"], str)) == (status, True)

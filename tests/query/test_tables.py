"""The documented tables over the small run: their columns are what the documentation says, their rows what
was recorded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schemas.event import Event
from slime_events.analysis.query import RunTables, tables_of
from slime_events.analysis.query.tables import TABLES
from tests import made
from tests.cli.small_run import GROUPS, REJECTED, RUN, write
from tests.lineage.opened import opened, small
from tools.tables_page import tables_page

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
async def tables() -> AsyncIterator[RunTables]:
    async with tables_of(await small()) as opened:
        yield opened


async def rows(tables: RunTables, sql: str) -> list[tuple[Any, ...]]:
    return (await tables.sql(sql)).rows()


def test_the_page_is_made_from_the_tables() -> None:
    assert (DOCS / "tables.md").read_text(encoding="utf-8") == tables_page()


async def test_every_column_is_there_in_its_order_with_its_type(tables: RunTables) -> None:
    for table in TABLES:
        answer = await tables.sql(f"FROM {table.name}")
        assert answer.columns == [column.name for column in table.columns]
        assert answer.types == [column.type for column in table.columns]
        answer.rows()


async def test_a_sample_from_its_request_to_its_version(tables: RunTables) -> None:
    sample = f"{GROUPS[3]}-s1"
    read = await rows(
        tables,
        "SELECT group_id, index, dataset, status, stop_reason, prompt_tokens, tokens, versions, oldest_version, "
        "newest_version, spans[2].end, reward, grader, reward_detail->>'found', verdict, step, batch_index, "
        f"normalised_reward, trained_version, staleness, queued_seconds FROM samples WHERE sample = '{sample}'",
    )
    place = ("inbox-aa", 1, "inbox", "completed", "length", 3, 3, [0, 1], 0, 1, 3)
    assert read == [(*place, 1.0, "exact", "42", "accepted", 1, 1, 1.0, 2, 1, 0.25)]


async def test_what_the_filter_refused_and_why(tables: RunTables) -> None:
    read = await rows(
        tables,
        "SELECT group_id, samples, completed, reward_mean, pass_rate, cause, reason, filter, figures['std'], step "
        "FROM groups WHERE verdict = 'rejected'",
    )
    assert read == [(REJECTED, 2, 2, 0.0, 0.0, "filter", "zero_std_0.0", "nonzero_std", 0.0, None)]


async def test_steps_and_the_versions_that_they_made(tables: RunTables) -> None:
    steps = await rows(
        tables,
        "SELECT step, version, groups, samples, reward_mean, staleness, metrics['loss'], batch_digest, weights_digest, "
        "optimizer_digest FROM steps",
    )
    assert sorted(steps) == [
        (0, 1, 2, 4, 0.5, 0, 0.5, "b0", "d1", "o1"),
        (1, 2, 2, 4, 0.5, 1, 0.5, "b1", "d2", "o2"),
    ]
    versions = await rows(
        tables, "SELECT version, parent, step, engines, max_lag_seconds FROM versions ORDER BY version"
    )
    assert versions == [(0, None, None, 1, 0.2), (1, 0, 0, 1, 0.2), (2, 1, 1, 1, 0.2)]


async def test_what_a_group_s_samples_came_to(tables: RunTables) -> None:
    read = await rows(
        tables,
        "SELECT group_id, truncated, distinct_responses, tokens_mean, oldest_version, reward_min, reward_max, "
        f"reward_std, pass_rate, step, trained_version FROM groups "
        f"WHERE group_id IN ('{GROUPS[3]}', '{GROUPS[4]}') ORDER BY group_id DESC",
    )
    assert read == [
        (GROUPS[4], 1, 1, 3.0, 0, 0.0, 1.0, 0.5**0.5, 0.5, 1, 2),
        (GROUPS[3], 1, 1, 3.0, 0, 0.0, 1.0, 0.5**0.5, 0.5, 1, 2),
    ]
    assert await rows(tables, "SELECT DISTINCT grading_failures, samples FROM groups") == [(0, 2)]
    assert await rows(tables, f"SELECT truncated, reward_max FROM groups WHERE group_id = '{GROUPS[0]}'") == [(0, 1.0)]


async def test_a_version_is_active_once_the_first_engine_runs_it() -> None:
    events_: list[Event] = [
        made.started(),
        made.published(),
        made.activated(engine="one", seconds=0.5, lag=2.0),
        made.activated(engine="other", seconds=0.25, lag=3.0),
    ]
    run = made.opened(await write(events_))  # a tenth of a second from one to the next
    async with tables_of(run) as tables:
        times = await rows(tables, 'SELECT version, min("time"), max("time") FROM activations GROUP BY version')
        read = await rows(
            tables, "SELECT version, activated, engines, max_lag_seconds, max_pause_seconds FROM versions"
        )
    ((_, first, last),) = times
    assert first < last
    assert read == [(0, first, 2, 3.0, 0.5)]


async def test_a_sample_that_was_asked_for_again() -> None:
    """At once after a failure, and after a suspension."""
    events_: list[Event] = [made.started(), made.submitted()]
    failed = made.failed("g-s0")
    rest = made.suspended("g-s0", 0, attempt=1)
    query = "SELECT sample, attempts, suspensions, status, failure FROM samples ORDER BY sample"
    states = []
    for more in (made.requested(), failed, made.requested(attempt=1), rest, made.requested(attempt=2)):
        events_.append(more)
        async with tables_of(await opened(events_)) as tables:
            states += await rows(tables, query)
            assert await rows(tables, "SELECT samples, completed FROM groups") == [(1, 0)]
    assert states == [
        ("g-s0", 1, 0, "requested", None),
        ("g-s0", 1, 0, "failed", "engine"),
        ("g-s0", 2, 0, "requested", None),
        ("g-s0", 2, 1, "suspended", None),
        ("g-s0", 3, 1, "requested", None),
    ]
    async with tables_of(await opened(events_)) as tables:
        read = await rows(tables, "SELECT attempt, outcome, reason FROM attempts ORDER BY attempt")
    assert read == [(0, "failed", "engine"), (1, "suspended", "step_boundary"), (2, None, None)]


async def test_times_of_a_sample_and_of_a_step() -> None:
    """A sample is requested when it is first asked for; a step takes as long as all its parts."""
    step = made.committed(weights_digest="d", optimizer_digest="o", seconds={"train": 0.5, "save": 0.25})
    events_: list[Event] = [made.started(), made.requested(), made.requested(attempt=1), step]
    run = made.opened(await write(events_))
    async with tables_of(run) as tables:
        assert await rows(tables, "SELECT seconds, seconds_by_part['save'] FROM steps") == [(0.75, 0.25)]
        first = await rows(tables, "SELECT min(\"time\") FROM events WHERE type = 'rollout.requested'")
        assert await rows(tables, "SELECT requested FROM samples") == first


async def test_a_part_of_a_reward_passes_nothing() -> None:
    """And what could not be graded counts as neither."""
    grader = {"group": "g", "grader": "t", "grader_digest": ""}
    events_: list[Event] = [
        made.submitted(),
        *(made.assigned(f"g-s{n}", value=value, **grader) for n, value in enumerate((0.5, 1.0, 0.75, 0.0))),
        made.reward_failed("g-s4", message="m", **grader),
    ]
    async with tables_of(await opened([made.started(), *events_])) as tables:
        assert await rows(tables, "SELECT pass_rate, reward_mean, grading_failures FROM groups") == [(0.25, 0.5625, 1)]
        assert await rows(tables, "SELECT reward, failure FROM rewards WHERE sample = 'g-s4'") == [(None, "raised")]


async def test_tokens_of_chunks_and_completions_join(tables: RunTables) -> None:
    read = await rows(
        tables,
        f"SELECT token_index, token, log_prob, version, loss_mask FROM tokens "
        f"WHERE sample = '{GROUPS[3]}-s1' ORDER BY token_index",
    )
    assert read == [(0, 10, -0.5, 0, True), (1, 11, -0.25, 0, True), (2, 12, -0.125, 1, True)]
    assert await rows(tables, "SELECT count(*) FROM tokens") == [(30,)]


async def test_event_tables_can_be_queried_too(tables: RunTables) -> None:
    read = await rows(tables, "SELECT run, source_line, reason FROM log.prompt_rejected")
    assert read == [(RUN, 7, "not_json: no JSON object")]


async def test_spans_are_those_of_the_traces(tables: RunTables) -> None:
    names = await rows(tables, "SELECT name, count(*) FROM spans GROUP BY name ORDER BY name")
    groups, samples, steps, versions = 5, 10, 2, 3
    assert names == [
        ("activate", versions), ("batch", steps), ("decide", groups), ("generate", samples), ("grade", samples),
        ("publish", versions), ("submit", groups), ("train", steps),
    ]  # fmt: skip
    orphans = (
        "SELECT count(*) FROM spans a ANTI JOIN spans b ON a.parent_span_id = b.span_id "
        "WHERE a.parent_span_id IS NOT NULL"
    )
    assert await rows(tables, orphans) == [(0,)]

"""Every query on every page is answered with rows, over a recorded run that has something of all that they ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import BadQuery
from schemas.rollouts import Sampling
from slime_events.analysis.query import tables_of
from storage.memory_log import MemoryLog
from tests import made
from tests.docs.commands import commands_of
from tests.docs.pages import PAGES
from tests.docs.recorded_run import recorded_run
from tests.golden.make_session import session

_FENCED = re.compile(r"^```sql\n(.*?)^```", re.DOTALL | re.MULTILINE)
_IN_PYTHON = re.compile(r"\.sql\(\s*\"(.*?)\"\s*\)", re.DOTALL)
_INLINE = re.compile(r"`--(?:archive-where|drop) \"(.*?)\"`", re.DOTALL)
_IS_SQL = re.compile(r"\s*(?:SELECT|WITH|FROM)\s+(?!\.\.\.)\S")
WRONG = "SELECT avg(rewards) FROM samples"
"""What docs/querying.md shows the message of."""


def queries(page: Path) -> Iterator[str]:
    """Return the queries of blocks, of commands, and of flags that take a query."""
    text = page.read_text(encoding="utf-8")
    yield from _FENCED.findall(text)
    yield from _IN_PYTHON.findall(text)
    yield from _INLINE.findall(text)
    for command in commands_of(page):
        yield from (word for word in command.words if _IS_SQL.match(word))


async def test_every_query_is_answered_with_rows(tmp_path: Path) -> None:
    queries_ = [(page.name, sql) for page in PAGES for sql in queries(page) if sql != WRONG and "{" not in sql]
    assert {page for page, _ in queries_} >= {"querying.md", "prompt-files.md", "retraining.md"}
    empty = []
    run = await recorded_run()
    assert isinstance(run.log, MemoryLog)
    of_agent = session(Sampling(max_new_tokens=40), "ab" * 32)
    await made.say(run.log, *of_agent, at=1_800_000_000_000_000_000)
    async with tables_of(run, cache=tmp_path) as tables:
        for page, sql in queries_:
            try:
                rows = (await tables.sql(sql)).rows()
            except BadQuery as error:
                raise AssertionError(f"{page}: {sql}\n{error}") from error
            if not rows:
                empty.append(f"{page}: {sql}")
    assert not empty, "\n".join(empty)

"""Log records have the ids of the span that their task works on, and only of that one."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from schemas.envelope import enclose
from schemas.event import Event
from schemas.turns import TurnRole
from slime_events.core.telemetry.current_span import call_in_span, current_span, in_span
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.process_log import setup_logging
from slime_events.core.telemetry.span import SpanContext
from slime_events.core.telemetry.span_place import (
    SpanPlace,
    generate_place,
    grade_place,
    train_place,
    turn_place,
)
from tests import made

RUN = "demo"
PLACE = generate_place("g0-s0", "g0")


@contextmanager
def process_log(folder: Path) -> Iterator[Path]:
    """Set up a process log and remove it again."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        yield setup_logging("engine", folder)
    finally:
        logging.captureWarnings(False)
        root.setLevel(level)
        for handler in set(root.handlers) - set(before):
            root.removeHandler(handler)
            handler.close()


@pytest.mark.parametrize(
    ("place", "event"),
    [
        (generate_place("g0-s0", "g0"), made.completed("g0-s0", group="g0")),
        (grade_place("g0-s0", "g0"), made.assigned("g0-s0", value=1, group="g0")),
        (turn_place("g0-s0", 2, TurnRole.ASSISTANT), made.turn("g0-s0", 2)),
        (train_place(3), made.committed(3, version=4, parent_version=3)),
    ],
)
def test_the_span_in_a_log_is_the_one_that_is_exported(place: SpanPlace, event: Event) -> None:
    span = span_of(enclose(RUN, event, at=1, producer="p"))
    assert span is not None
    with in_span(RUN, place):
        assert current_span() == span.context
    assert current_span() is None


async def test_tasks_and_threads_have_the_span_of_their_work_while_it_lasts() -> None:
    end, seen = asyncio.Event(), list[SpanContext | None]()

    async def leaked() -> None:
        seen.append(current_span())
        await end.wait()
        seen.append(current_span())

    async def work() -> asyncio.Task[None]:
        seen.append(await asyncio.to_thread(current_span))
        task = asyncio.create_task(leaked())
        await asyncio.sleep(0)
        return task

    (task, *_) = await asyncio.gather(
        call_in_span(RUN, PLACE, work), call_in_span(RUN, grade_place("g1-s0", "g1"), partial(asyncio.sleep, 0))
    )
    end.set()
    await task
    with in_span(RUN, PLACE):
        expected = current_span()
    assert seen == [expected, expected, None]


def test_records_have_the_ids_and_others_have_none(tmp_path: Path) -> None:
    with process_log(tmp_path) as path:
        with in_span(RUN, PLACE):
            context = current_span()
            logging.getLogger("x").warning("slow")
            thread = threading.Thread(target=partial(logging.getLogger("x").warning, "other"))
            thread.start()
            thread.join()
        logging.getLogger("x").warning("after")
        slow, other, after = path.read_text().splitlines()
    assert context is not None
    assert f"trace_id={context.trace:032x} span_id={context.span:016x}" in slow
    assert "trace_id" not in other + after

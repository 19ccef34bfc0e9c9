"""`Roles`: what is still told of a role once its run has ended."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.errors import TrainerError
from slime_events.app.launch.roles import GRADER, Roles
from slime_events.core.config.settings import TrainSettings


async def fail_around_the_end(*, is_late: bool) -> None:
    end: concurrent.futures.Future[Any] = concurrent.futures.Future()
    run = SimpleNamespace(remote=lambda *_: SimpleNamespace(future=lambda: end))
    cluster: Any = SimpleNamespace(actor=lambda *_, **__: SimpleNamespace(run=run))
    address: Any = SimpleNamespace(run="sim")
    roles = Roles(cluster, TrainSettings(), address)
    roles.start(GRADER)
    if is_late:
        roles.let_go()
    end.set_exception(TrainerError("its disk is full"))
    await asyncio.wait([roles.tasks[GRADER]], timeout=60)
    if not is_late:
        roles.let_go()
    await asyncio.sleep(0)  # what is called at a role's end is called now


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
async def test_a_role_that_fails_around_the_end_of_its_run_prints_nothing(
    caplog: pytest.LogCaptureFixture, *, is_late: bool
) -> None:
    await fail_around_the_end(is_late=is_late)
    gc.collect()
    assert "its disk is full" not in caplog.text

"""`Roles`: what is still told of a role once its run has ended."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.errors import TrainerError
from slime_events.app.launch.roles import GRADER, TRAINER, Roles
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.run.process_environment import DETERMINISTIC


@pytest.mark.parametrize("is_on", [False, True])
def test_a_deterministic_trainer_s_processes_alone_have_its_variables(*, is_on: bool) -> None:
    given: dict[str, Any] = {}

    def actor(cls: type, name: str, *_: Any, env: Any, **__: Any) -> Any:
        given[name.split("-")[0]] = env
        return SimpleNamespace(run=SimpleNamespace(remote=lambda *_: SimpleNamespace(future=concurrent.futures.Future)))

    trainer = TrainerSettings(deterministic_mode=is_on, actor_num_gpus_per_node=2)
    cluster: Any = SimpleNamespace(actor=actor, gpus=0)
    address: Any = SimpleNamespace(run="sim", folder="")

    async def start() -> None:
        roles = Roles(cluster, replace(TrainSettings(), trainer=trainer), address)
        for role in (GRADER, TRAINER):
            roles.start(role)

    asyncio.run(start())
    assert given["grader"] is None
    assert given["rank1"] == given["trainer"]
    assert set(given["trainer"]) == (set(DETERMINISTIC) if is_on else set())


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

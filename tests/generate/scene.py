"""A run whose rollouts a generate function makes: `Crashed` of tests/simulation with such a function."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypeVar

from schemas.arrays import unpack
from schemas.event import Event
from serve_apps.rollouts.generate.function import GenerateSetup
from serve_apps.rollouts.generate.slime.requests import ROUTER
from slime_events.analysis.audit.audit import Audit
from slime_events.loop.conductor.plan import Plan
from storage.follow import Follower
from tests.harness.history.checker import check
from tests.scripted_engine import Script
from tests.simulation.crash import Crashed, Fate, Scene
from tests.simulation.seconds import check_seconds
from tests.simulation.simulation import make_plan

EventT = TypeVar("EventT", bound=Event)
ONE = make_plan(steps=1, groups=1, samples=1)
ARGS = {"group_rm": False, "reward_key": "score", "eval_reward_key": None, "max_turns": 3}


def setup(function: str, *, timeout_s: float = 10.0, **args: Any) -> GenerateSetup:
    """A function of tests/generate/functions.py, or `file.py:name`."""
    path = function if ":" in function else f"tests.generate.functions:{function}"
    return GenerateSetup(
        path=path, user_dir=str(Path.cwd()), timeout_s=timeout_s, args={**ROUTER, **ARGS, **args}, tokenizer=""
    )


def a_run(
    folder: Path, function: str | GenerateSetup, plan: Plan = ONE, fate: Fate | None = None, **scene: Any
) -> Crashed:
    """Ready to run."""
    folder.mkdir(exist_ok=True)
    generate = function if isinstance(function, GenerateSetup) else setup(function)
    scripts = scene.pop("scripts", (Script(chunk=4),))
    return Crashed(Scene(plan=plan, generate=generate, scripts=scripts, **scene), folder, fate)


async def run_until(run: Crashed, kind: type[Event]) -> None:
    """Until an event of the kind is in the log; then everybody is stopped."""
    running = asyncio.create_task(run.run())
    try:
        async with asyncio.timeout(20), Follower(run.log) as follower:
            while not events(run, kind):
                await follower.next(1.0)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def check_log(run: Crashed) -> None:
    """Check that both judges of a log report nothing."""
    assert check([(recorded.position, recorded.subject, recorded.data) for recorded in run.log.records]) == []
    check_seconds(run.log.records)
    auditor = Audit("sim", fetch=unpack, files=False)
    for recorded in run.log.records:
        auditor.apply(recorded)
    assert auditor.finish().findings == []


def events(run: Crashed, kind: type[EventT], **fields: Any) -> list[EventT]:
    """All events of a kind, in order."""
    events_ = [recorded.envelope.event for recorded in run.log.records]
    return [
        event
        for event in events_
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
    ]

"""Whatever a generate function does, at any place, costs its own rollout, and the engine makes the next."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from schemas.groups import GroupRejected
from schemas.prompts import PromptSubmitted
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed
from schemas.steps import StepCommitted
from tests.generate.scene import a_run, check_log, events, setup
from tests.hostile.deeds import DEEDS, HEAVY
from tests.hostile.functions import GOOD, LARGE_PLACES, PLACES
from tests.simulation import crash
from tests.simulation.simulation import make_plan


@pytest.mark.parametrize("place", [*PLACES, "hook"])
async def test_a_deed_costs_its_own_rollout(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every deed has its end in the log, with a reason where it failed, and every good sample between is trained on."""
    names, steps = [name for name in DEEDS if place in LARGE_PLACES or name not in HEAVY], 3
    rows = [[f"{place}: {name}" for name in names[at : at + 3]] + [GOOD] for at in range(0, len(names), 3)]
    prompts = [prompt for some in rows for prompt in some] + [GOOD] * (len(names) + steps)
    groups = (len(names) + len(rows)) // steps + 1  # more than there are until the last deed: all are asked for
    own_setup = setup("tests.hostile.functions:generate", timeout_s=60.0)
    if place == "hook":
        own_setup = msgspec.structs.replace(own_setup, hooks=("tests.hostile.functions:hook",))
    run = a_run(tmp_path, own_setup, make_plan(steps=steps, groups=groups, samples=1), prompts=prompts)
    monkeypatch.setattr(crash, "DEADLINE_S", 200.0)
    await run.run()
    assert len(events(run, StepCommitted)) == steps
    check_log(run)
    prompt_of = {event.group: event.text for event in events(run, PromptSubmitted)}
    failures = {prompt_of[event.group]: event for event in events(run, RolloutFailed)}
    done = {prompt_of[event.group] for event in events(run, RolloutCompleted)}
    assert {f"{place}: {name}" for name in names} <= done | set(failures)
    assert GOOD not in failures
    for prompt, failure in failures.items():
        assert failure.kind is FailureKind.INVALID, f"{prompt}: {failure.message}"
        assert 0 < len(failure.message) <= 2_000
        assert failure.message.encode()
    for rejected in events(run, GroupRejected):
        assert rejected.reason

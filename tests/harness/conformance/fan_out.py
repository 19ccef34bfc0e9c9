"""A rollout that becomes several samples and is under way when the step ends: a whole run over the log in memory."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from schemas.ids import sibling_id
from schemas.rollouts import RolloutCompleted, RolloutSuspended
from tests.generate.scene import a_run, events
from tests.scripted_engine import Script
from tests.simulation.simulation import make_plan


def fan_out_at_a_boundary() -> dict[str, Any]:
    """Return how many samples came from each rollout that was suspended and then ended."""
    plan = make_plan(steps=3, groups=1, samples=2, draw=2, in_prompt_order=False, partial_rollout=True)
    with tempfile.TemporaryDirectory() as folder:
        run = a_run(Path(folder), "uneven", plan, scripts=(Script(chunk=2, seconds_per_chunk=0.004),))
        asyncio.run(run.run())
    rested = {event.sample for event in events(run, RolloutSuspended)}
    ended = {event.sample for event in events(run, RolloutCompleted)}
    continued = sorted(rested & ended)
    return {
        "recycled": bool(continued),
        "samples_of_each": sorted({sum(sibling_id(sample, n) in ended for n in range(3)) for sample in continued}),
    }

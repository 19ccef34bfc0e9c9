"""Makes golden logs of decisions: `python -m tests.golden.make_decisions v3`.

Each is the log of a real conductor among scripted engines and graders, with the settings that it decided by. Replayed
in all later tests, it shows that this version would have decided as the one that wrote it. None is ever made again.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.rewards import RewardFailureKind
from schemas.runs import RunStarted
from slime_events.core.config.toml import settings_from
from slime_events.loop.conductor.plan import make_plan
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.filters.decide import make_group_filter
from slime_events.plugins.rewards.outcome import Graded, Outcome, RewardFailure
from slime_events.plugins.sample import Sample
from tests.golden.log_file import FOLDER, write_records
from tests.scripted_engine import Script
from tests.simulation.parts import InstantPool, by_text
from tests.simulation.simulation import Simulation

DECISIONS = FOLDER / "decisions"
FILTERS = "slime_events.plugins.filters.dynamic_sampling"


@dataclass(frozen=True)
class Recipe:
    """settings: what the run decides by, and says that it does. script: of both engines."""

    settings: Mapping[str, Mapping[str, Any]]
    script: Script
    evaluations: Mapping[str, list[str]] = field(default_factory=dict)


SYNCHRONOUS = Recipe(
    {
        "rollout": {
            "num_rollout": 4,
            "rollout_batch_size": 2,
            "n_samples_per_prompt": 3,
            "rollout_max_response_len": 6,
            "dynamic_sampling_filter_path": f"{FILTERS}:check_reward_nonzero_std",
        },
        "evaluation": {"eval_interval": 2, "eval_prompt_data": ["held", "held.jsonl"], "n_samples_per_eval_prompt": 2},
        "trainer": {"save_interval": 2},
    },
    Script(chunk=3, seconds_per_chunk=0.002, refused={"train-0-000001-s0-0-1": "no room", **{
        f"train-0-000002-s0-{attempt}-1": "no room" for attempt in range(3)
    }}),
    {"held": ["one", "two"]},
)  # fmt: skip
RESTING = Recipe(
    {
        "rollout": {
            "num_rollout": 4,
            "rollout_batch_size": 2,
            "n_samples_per_prompt": 2,
            "rollout_max_response_len": 40,
            "over_sampling_batch_size": 4,
            "accept_order": "completion",
            "partial_rollout": True,
            "mask_offpolicy_in_partial_rollout": True,
        },
    },
    Script(chunk=1, seconds_per_chunk=0.004, eos=0, stop_chance=0.08),
)
ASYNCHRONOUS = Recipe(
    {
        "rollout": {
            "num_rollout": 4,
            "rollout_batch_size": 2,
            "n_samples_per_prompt": 2,
            "rollout_max_response_len": 8,
            "max_staleness": 1,
            "dynamic_sampling_filter_path": f"{FILTERS}:check_reward_nonzero_std_with_fallback",
        },
        "trainer": {"update_weights_interval": 2},
    },
    Script(chunk=2, seconds_per_chunk=0.002, eos=0, stop_chance=0.15),
)
RECIPES = {"synchronous": SYNCHRONOUS, "resting": RESTING, "asynchronous": ASYNCHRONOUS}


def graded(sample: Sample) -> Outcome:
    """Right or wrong, by the response alone; one in eight responses cannot be graded."""
    share = by_text(sample)
    if share > 0.875 and sample.session_id and sample.session_id.startswith("train"):
        return RewardFailure(kind=RewardFailureKind.NONE, message="the grader returned None", grader="golden")
    return Graded(value=float(share > 0.4), grader="golden")


async def records(recipe: Recipe, folder: Path) -> list[bytes]:
    """The log of a run."""
    settings = settings_from(recipe.settings)
    args = ArgsView.of(settings.rollout, settings.reward, settings.algorithm)
    async with Simulation(
        folder,
        make_plan(settings.rollout, settings.evaluation, settings.trainer),
        judge=make_group_filter(settings.rollout, args),
        pool=InstantPool(graded),
        evaluations=dict(recipe.evaluations),
        started=RunStarted(settings=dict(recipe.settings), code_version="golden"),
    ) as simulation:
        simulation.start_engine(recipe.script)
        simulation.start_engine(recipe.script)
        await simulation.finish()
    return [recorded.data for recorded in simulation.log.records]


def main(version: str) -> None:
    """Write one log for each recipe; raise FileExistsError if there is one."""
    DECISIONS.mkdir(exist_ok=True)
    for name, recipe in RECIPES.items():
        with tempfile.TemporaryDirectory() as folder:
            write_records(DECISIONS / f"{version}-{name}.slimelog", asyncio.run(records(recipe, Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1])

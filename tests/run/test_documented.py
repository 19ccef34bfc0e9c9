"""Each way to train is started once, as its page says: the command line, the launcher and what it starts are real.

What needs no engine has none: the rollouts of a page's command are dumped once, and PPO and distillation are training
alone on those. The steps of agents, whose point is another, are made by a scripted engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from tests.harness.docs_run.__main__ import starts_by_key
from tests.harness.docs_run.case import Parts
from tests.harness.docs_run.cases import CASES
from tests.harness.docs_run.play import play
from tests.harness.docs_run.stage import Stage

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
DUMPED = "dumps/rollout_data/{rollout_id}.pt"
LOADED = f"--debug-train-only --load-debug-rollout-data '{DUMPED}'"
SMALL = "--rollout-batch-size 2 --n-samples-per-prompt 4"
KINDS = {
    "supervised": ("docs/algorithms.md", "slime-events train --config sft.toml", ""),
    "rollouts alone": ("docs/exporting.md", "--debug-rollout-only", SMALL),
    "ppo": ("docs/algorithms.md", "slime-events train ... --advantage-estimator ppo", f"{SMALL} {LOADED}"),
    "distilling": ("docs/algorithms.md", "slime-events demo --run distilled --use-opd", LOADED),
    "tinker": ("docs/tinker.md", "slime-events train --run mine --tinker", ""),
    "agents": ("docs/agents.md", "slime-events train --config settings.toml --agents --gateway --agent-command", ""),
    "a rollout function": ("docs/generate-functions.md", "# own_rollout.py", SMALL),
}
"""Of each way to train: a page, what is in its command there, and flags that make it smaller still."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("documented").resolve() / "me")
    folder = stage.home / "slime-runs" / "demo"
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text((stage.home / "settings.toml").read_text())
    weights = folder / "weights"
    weights.mkdir()
    (weights / "v000006-0").symlink_to((stage.home / "teacher").resolve())
    yield stage
    stage.close()


@pytest.mark.parametrize("kind", KINDS)
def test_it_ends_as_its_page_says(kind: str, stage: Stage) -> None:
    page, begin, more = KINDS[kind]
    case = next(case_ for case_ in CASES if case_.page == page and begin in case_.text)
    parts = Parts.SCRIPTED if kind == "agents" else Parts.REAL
    case = dataclasses.replace(case, parts=parts, more=f"{case.more} {more}".strip())
    played = play(case, starts_by_key()[case.key], stage)
    assert not played.wrong, "\n".join([played.command, *played.wrong])

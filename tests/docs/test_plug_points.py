"""Every function that a page shows does what the page says, on rollouts as a real model writes them."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from schemas.batches import BatchSealed
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutCompleted, RolloutReturned
from schemas.turns import TurnRecorded
from slime_events.analysis.rescore.change import make_change
from slime_events.analysis.rescore.rescore import rescore
from slime_events.core.config.data import DataSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.state.run import RunPhase
from slime_events.loop.conductor.user_data_source import UserDataSource
from slime_events.loop.prompts.archived_prompts import read_members, read_rows
from slime_events.loop.prompts.buffer_filter import BufferFilter
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import load_function
from slime_events.plugins.sample import Sample
from slime_events.plugins.step_functions import StepFunctions
from slime_events.plugins.trainer_points import ADVANTAGE, DATA, LOSS, MODEL, POST_PROCESS, REDUCER
from tests.docs.pages import DOCS, PAGES, ROOT
from tests.docs.recorded_run import MIXED, SAMPLES, STEPS, recorded_run
from tests.generate.scene import a_run, events, setup
from tests.rollout_function.scene import a_run as function_run
from tests.rollout_function.scene import check_log, runner
from tests.simulation.parts import Letters

_FILE = re.compile(r"^```python\n# ([\w.]+\.py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TRY = re.compile(r"^```python\n((?:from [^\n]+\n)+\nassert .*?)^```", re.DOTALL | re.MULTILINE)
SHOWN = {name: code for page in PAGES for name, code in _FILE.findall(page.read_text(encoding="utf-8"))}
CHECKED = {"rewards.py", "mixed.py", "filters.py", "spread.py", "mine.py", "my_source.py", "own_loss.py"}
CHECKED |= {"own_client.py", "convert.py", "step_data.py", "own_model.py", "own_rollout.py", "paid.py"}
CALCULATOR = ROOT / "examples" / "calculator.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that holds a user's functions."""
    for name, code in SHOWN.items():
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def changes(*flags: str) -> list[dict]:
    """Rescore the run with these flags, and return the changed samples and groups."""
    opened, out = await recorded_run(), io.BytesIO()
    await rescore(opened, make_change(opened.settings, flags), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_every_file_that_a_page_shows_is_checked_here() -> None:
    assert set(SHOWN) == CHECKED


@pytest.mark.parametrize(
    ("response", "domain", "reward"),
    [(r"so \boxed{4}", "math", 1.0), ("<think>4</think>a fox<|im_end|>", "words", 1.0), ("fox", "math", 0.0)],
)
def test_a_reward_with_graders_of_slime(folder: Path, response: str, domain: str, reward: float) -> None:
    label = "4" if "4}" in response else "fox"
    grade = load_function("mixed.py:reward_func", user_dir=folder)
    assert grade(None, Sample(response=response, label=label, metadata={"domain": domain})) == reward


@pytest.mark.parametrize(
    ("name", "response", "reward"),
    [("longer", "1" * 100, 0.5), ("phrase", "1=0;0+5", 1.0), ("phrase", "5", 0.5), ("minus", "-12<|im_end|>", 1.0)],
)
def test_rewards_that_pay_for_something_else(folder: Path, name: str, response: str, reward: float) -> None:
    grade = load_function(f"paid.py:{name}", user_dir=folder)
    assert grade(None, Sample(response=response, label="5")) == reward


async def test_a_reward_tells_right_answers_from_wrong_ones(folder: Path) -> None:
    changes_ = await changes("--custom-rm-path", f"{folder}/rewards.py:reward_func")
    rewards = {change["sample"]: change["reward"] for change in changes_ if "sample" in change}
    # Right answers keep the whole reward, which they had; each wrong one gets a little instead of nothing.
    wrong = [f"train-0-{step:06d}-s{index}" for step in range(STEPS) for index in range(SAMPLES) if not MIXED[index]]
    assert {rewards[sample] for sample in wrong} == {0.1}
    assert not [sample for sample in rewards if sample.startswith("train-1-")]
    assert set(rewards.values()) == {0.1}


async def test_the_reward_of_the_snippet_is_that_of_the_last_answer(folder: Path) -> None:
    changes_ = await changes("--custom-rm-path", f"{CALCULATOR}:reward_func")
    assert not [change for change in changes_ if "sample" in change], "it pays what exact has paid"
    again = await changes("--custom-rm-path", f"{folder}/rewards.py:reward_func")
    assert again, "and would have been heard"


@pytest.mark.parametrize(
    ("path", "reason", "keeps_unsolved"),
    [("filters.py:not_too_easy", "solved_1.0", True), ("spread.py:keep", "the filter gave no reason", False)],
)
async def test_a_filter_keeps_some_groups_and_drops_others(
    folder: Path, path: str, reason: str, *, keeps_unsolved: bool
) -> None:
    changes_ = await changes("--dynamic-sampling-filter-path", f"{folder}/{path}")
    dropped = {change["group"]: change["reason"] for change in changes_ if "group" in change and not change["accept"]}
    assert dropped == {f"train-1-{step:06d}": reason for step in range(STEPS)}, "and keeps the mixed ones"
    kept = {change["group"] for change in changes_ if "group" in change and change["accept"]}
    unsolved = {f"inbox-{step:06d}" for step in range(STEPS)} | {"train-0-000099"}
    assert kept == (unsolved if keeps_unsolved else set())


async def test_a_buffer_filter_chooses_the_hard_ones(folder: Path) -> None:
    opened = await recorded_run()
    rows = await read_rows(opened, 1.0)
    numbered = list(enumerate(rows))
    await read_members(opened, dict(numbered))
    mine = BufferFilter(f"{folder}/mine.py:choose", ArgsView({}))
    chosen = mine.choose(numbered)
    assert chosen is not None
    assert sum(rows[chosen].rewards) <= 2
    easy = [(number, row) for number, row in numbered if sum(row.rewards) > 2]
    assert easy
    assert mine.choose(easy) == easy[0][0], "where nothing is hard the first is taken"


def test_a_data_source_gives_prompts(folder: Path) -> None:
    data = DataSettings(data_source_path=f"{folder}/my_source.py:MySource")
    source = UserDataSource(data, ArgsView({"n_samples_per_prompt": 2}), Letters(), 200)
    taken = source.take({}, 3)
    prompts = [event for event in taken if isinstance(event, PromptSubmitted)]
    assert [(event.text, event.label) for event in prompts] == [(f"<user>{n}+{n}", str(2 * n)) for n in range(3)]
    again = UserDataSource(data, ArgsView({"n_samples_per_prompt": 2}), Letters(), 200)
    assert again.take({data.data_source_path or "": 2}, 1) == taken[2:], "after a restart it continues"


def test_functions_of_the_trainer_are_what_its_points_take(folder: Path) -> None:
    for point, name in (
        (ADVANTAGE, "advantages"),
        (REDUCER, "by_constant"),
        (POST_PROCESS, "post_process"),
        (LOSS, "likelihood"),
    ):
        point.check(f"{folder}/own_loss.py:{name}")
    own = partial(load_function, user_dir=folder)
    rollout_data = {
        "rollout_log_probs": [torch.zeros(2), torch.zeros(65)],
        "rewards": [2.0, -2.0],
        "response_lengths": [2, 65],
    }
    own("own_loss.py:advantages")(None, rollout_data)
    assert [part.unique().tolist() for part in rollout_data["advantages"]] == [[2.0], [-1.0]]
    masks = [torch.tensor([1, 0]), torch.ones(65)]
    reduce = own("own_loss.py:by_constant")([3, 66], [2, 65], masks, False)
    assert reduce(torch.ones(67)).item() == pytest.approx(66 / 1024)
    samples = [Sample(reward=1.0), Sample(reward=0.0)]
    assert own("own_loss.py:post_process")(ArgsView({}), samples) == ([1.0, 0.0], [0.5, -0.5])


def test_functions_over_a_step_are_what_its_points_take(folder: Path) -> None:
    DATA.check(f"{folder}/step_data.py:mask_surprises")
    MODEL.check(f"{folder}/own_model.py:provider")
    data = {"loss_masks": [torch.ones(2, dtype=torch.int32)], "log_probs": [torch.tensor([-3.0, -1.0])]}
    data["rollout_log_probs"] = [torch.tensor([-0.5, -0.5])]
    load_function("step_data.py:mask_surprises", user_dir=folder)(None, 0, data)
    assert data["loss_masks"][0].tolist() == [0, 1]
    path = f"{folder}/convert.py:convert"
    functions = StepFunctions(RolloutSettings(custom_convert_samples_to_train_data_path=path), lambda: ArgsView({}))
    samples = [Sample(tokens=[1, 2, 3], response_length=2, loss_mask=[1, 1], reward=reward) for reward in (1.0, 0.0)]
    converted = functions.convert([[sample] for sample in samples], (1.0, 0.0), (1.0, -1.0))
    assert (converted.raw_rewards, converted.rewards) == ((1.0, 0.0), (0.5, -0.5))
    assert [column.name for column in converted.columns] == ["loss_masks", "weights"]


def test_what_a_page_asserts_holds(folder: Path) -> None:
    tries = [code for page in PAGES for code in _TRY.findall(page.read_text(encoding="utf-8"))]
    assert tries
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for code in tries:
        subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, env=environment, timeout=60)


def test_the_page_shows_the_snippet_as_it_is() -> None:
    page = (DOCS / "generate-functions.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    source = CALCULATOR.read_text(encoding="utf-8").replace(
        '    sample.metadata["turns"] = args.max_turns - left\n', ""
    )
    snippets = [block for block in blocks if not block.startswith("# ")]
    assert len(snippets) == 2
    assert all(block in source for block in snippets)


async def test_a_client_of_ones_own_makes_a_recorded_turn(folder: Path) -> None:
    run = a_run(folder / "run", setup(f"{folder}/own_client.py:generate"))
    await run.run()
    (turn,), (done,) = events(run, TurnRecorded), events(run, RolloutCompleted)
    assert (turn.length, done.length, done.spans) == (24, 24, turn.spans)


async def test_the_rollout_function_leaves_out_the_best_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rollout.py").write_text(SHOWN["own_rollout.py"])
    async with function_run(tmp_path) as run:
        run.start_engine()
        run.start_role("function", runner(run, f"{tmp_path}/own_rollout.py:rollout").run())
        assert await run.finish() is RunPhase.FINISHED
    assert [len(event.groups) for event in run.events(BatchSealed)] == [2, 2, 2]
    assert all(reward < 0 for event in run.events(BatchSealed) for reward in event.raw_rewards)
    assert [event.metrics for event in run.events(RolloutReturned)] == [{"rollout/left_out": 2.0}] * 3
    check_log(run)

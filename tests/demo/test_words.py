"""The closing words: what was reached, honestly, and three commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from slime_events.app.cli.commands.demo import SMOLLM2, TINY, is_stock, last_sample
from slime_events.app.demo.settings import demo_settings, smollm2_settings
from slime_events.app.demo.words import HONEST, TOO_LITTLE, closing_words
from slime_events.core.config.settings import RunSettings, TrainSettings

REWARDS = [0.35] * 5 + [0.961] * 5
REQUIRED = {
    "reward_first": 0.35,
    "reward_last": 0.961,
    "rewards": REWARDS,
    "weight_versions": 60,
    "events": 12034,
    "seconds": 203.2,
}
STOCK = REQUIRED | {"task": "digits4"}


def test_the_least_that_is_known_is_enough() -> None:
    words = closing_words(STOCK)
    assert "0.35 -> 0.96" in words
    assert "not new arithmetic" in words
    assert "held-out  " not in words


def test_what_is_known_is_said() -> None:
    words = closing_words(
        REQUIRED
        | {"eval_first": 0.5, "eval_last": 0.99, "response_tokens_first": 9.1, "response_tokens_last": 24.8}
        | {"run": "mine", "folder": "runs/mine", "sample": "g7-3"}
    )
    assert "0.50 -> 0.99" in words
    assert "9 -> 25 tokens" in words
    for expected in ("runs/mine", "show mine ", "show mine --sample g7-3", "demo --model smollm2-135m"):
        assert expected in words


def test_smollm2_gets_its_own_words() -> None:
    words = closing_words(REQUIRED | {"run": "smollm2-135m", "task": "arithmetic"})
    assert "real pretrained model" in words
    assert "--model" not in words


def test_what_was_learned_is_said_of_the_stock_task_and_where_it_gained() -> None:
    assert HONEST["digits4"] in closing_words(STOCK | {"eval_first": 0.6, "eval_last": 0.98})
    for summary in (STOCK | {"eval_first": 0.6, "eval_last": 0.61}, STOCK | {"reward_last": 0.36}):
        words = closing_words(summary)
        assert HONEST["digits4"] not in words
        assert TOO_LITTLE in words
    own = closing_words(REQUIRED | {"task": None})
    assert TOO_LITTLE not in own
    assert not any(text in own for text in HONEST.values())


@pytest.mark.parametrize(
    ("rewards", "figure", "of"),
    [
        ([0.4], "0.40  ", "one step"),
        ([0.4, 0.6], "0.40 -> 0.60", "first and last step"),
        ([0.4] * 9, "0.40 -> 0.40", "first and last step"),
        (REWARDS, "0.35 -> 0.96", "means of five steps"),
    ],
)
def test_the_means_of_five_steps_are_of_five_steps(rewards: list[float], figure: str, of: str) -> None:
    words = closing_words(STOCK | {"rewards": rewards, "response_tokens_first": 9.1, "response_tokens_last": 9.1})
    assert f"{figure}" in words
    assert f"({of})" in words
    assert ("answer length" in words) == (len(rewards) > 1)


def test_a_task_of_the_user_s_own_is_not_the_stock_one(tmp_path: Path) -> None:
    run = RunSettings(run="d", runs_dir=str(tmp_path))
    data = tmp_path / "d" / "data"

    def changed(settings: TrainSettings, component: str, **fields: object) -> TrainSettings:
        part = msgspec.structs.replace(getattr(settings, component), **fields)
        return msgspec.structs.replace(settings, **{component: part})

    tiny = msgspec.structs.replace(demo_settings(data), run=run)
    large = msgspec.structs.replace(smollm2_settings(data, tmp_path / ".models" / SMOLLM2), run=run)
    assert is_stock(tiny, TINY)
    assert is_stock(large, SMOLLM2)
    assert is_stock(changed(tiny, "rollout", num_rollout=3), TINY)
    for component, fields in (
        ("reward", {"custom_rm_path": "mine.py:reward"}),
        ("reward", {"rm_type": "f1"}),
        ("data", {"prompt_data": "mine.jsonl"}),
        ("engine", {"hf_checkpoint": "mine"}),
        ("rollout", {"custom_generate_function_path": "mine.py:generate"}),
    ):
        assert not is_stock(changed(tiny, component, **fields), TINY)


@pytest.mark.parametrize(
    ("changes", "sample"),
    [
        ({}, "train-0-000047-s0"),
        ({"rollout_shuffle": True}, None),
        ({"archive_prompts": "slime-runs/demo"}, None),
        ({"prompt_sampler": "curriculum"}, None),
        ({"data_source_path": "mine.py:Source"}, None),
    ],
)
def test_a_sample_is_named_only_where_its_name_is_known(changes: dict[str, Any], sample: str | None) -> None:
    settings = demo_settings(Path("data"))
    changed = replace(settings, data=replace(settings.data, **changes))
    assert last_sample(3, changed) == sample


def test_what_the_held_out_score_is_of_is_said_of_the_stock_task_alone() -> None:
    assert "never trained on" in closing_words(STOCK | {"eval_last": 0.9})
    assert "never trained on" not in closing_words(STOCK | {"eval_last": 0.9, "task": None})

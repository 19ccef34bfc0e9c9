"""Test slime's debug flags in whole command lines."""

from __future__ import annotations

import pytest

from schemas.errors import ImpossibleCombination
from slime_events.algorithms.train_arguments import parse_train

LINE = [
    *("--hf-checkpoint", "/m", "--num-rollout", "3", "--prompt-data", "p.jsonl", "--rm-type", "exact"),
    *("--eval-interval", "2", "--eval-prompt-data", "held", "h.jsonl"),
    *("--over-sampling-batch-size", "64", "--update-weights-interval", "2"),
]


def test_loaded_rollouts_leave_generation_out() -> None:
    parsed = parse_train([*LINE, "--load-debug-rollout-data", "/d/{rollout_id}.pt"])
    settings = parsed.settings
    assert settings.debug.debug_train_only
    assert (settings.data.prompt_data, settings.evaluation.eval_interval) == (None, None)
    assert settings.rollout.over_sampling_batch_size is None
    (note,) = (note for note in parsed.notes if "load_debug_rollout_data" in note)
    assert note.startswith("prompt_data, eval_interval, over_sampling_batch_size have no effect")
    nobody_grades = [word for word in LINE if word not in ("--rm-type", "exact")]
    assert parse_train([*nobody_grades, "--load-debug-rollout-data", "/d/0.pt"]).settings.reward.rm_type is None


@pytest.mark.parametrize(
    "drawn",
    [
        ["--prompt-sampler", "curriculum"],
        ["--data-source-path", "mine.py:Mine"],
        ["--archive-prompts", "a/b", "--archive-where", "SELECT 1", "--buffer-filter-path", "mine.py:choose"],
        ["--archive-prompts", "a/b", "--archive-reuse", "rollouts", "--use-tis"],
        ["--custom-generate-function-path", "mine.py:generate"],
        ["--partial-rollout", "--mask-offpolicy-in-partial-rollout"],
    ],
)
def test_however_prompts_are_drawn_nothing_is_drawn_beside_what_is_loaded(drawn: list[str]) -> None:
    bare = parse_train([*LINE, "--load-debug-rollout-data", "/d/0.pt"]).settings
    parsed = parse_train([*LINE, *drawn, "--load-debug-rollout-data", "/d/0.pt"])
    assert (parsed.settings.data, parsed.settings.rollout) == (bare.data, bare.rollout)
    (note,) = (note for note in parsed.notes if "load_debug_rollout_data" in note)
    names = [word.removeprefix("--").replace("-", "_") for word in drawn if word.startswith("--")]
    assert [name for name in names if name not in note] == [name for name in names if name == "use_tis"]


def test_without_a_trainer_weights_are_published_at_both_ends() -> None:
    settings = parse_train([*LINE, "--debug-rollout-only", "--save-interval", "1"]).settings
    assert (settings.trainer.update_weights_interval, settings.trainer.save_interval) == (3, None)
    assert settings.rollout.max_staleness == 0


def test_details_are_dumped_into_a_folder() -> None:
    parsed = parse_train([*LINE, "--dump-details", "/d/"])
    assert parsed.settings.debug.save_debug_rollout_data == "/d/rollout_data/{rollout_id}.pt"
    assert parsed.settings.debug.save_debug_train_data == "/d/train_data/{rollout_id}_{rank}.pt"
    alone = parse_train([*LINE, "--dump-details", "/d/", "--debug-rollout-only"])
    assert any("nothing is trained" in note for note in alone.notes)


def test_each_step_has_its_own_file() -> None:
    """slime's script for GLM-4.5 gives one path, which slime overwrites in each step."""
    parsed = parse_train([*LINE, "--save-debug-rollout-data", "/d/data.pt", "--save-debug-train-data", "/d/{rank}"])
    assert parsed.settings.debug.save_debug_rollout_data == "/d/data_{rollout_id}.pt"
    assert parsed.settings.debug.save_debug_train_data == "/d/{rank}_{rollout_id}"
    assert "save_debug_rollout_data is /d/data_{rollout_id}.pt: each step has its own file." in parsed.notes


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--debug-train-only"], "needs load_debug_rollout_data"),
        (["--debug-rollout-only", "--debug-train-only"], "debug_rollout_only excludes debug_train_only"),
        (["--load-debug-rollout-data-subsample", "0.5"], "needs load_debug_rollout_data"),
        (
            ["--load-debug-rollout-data", "/d/0.pt", "--load-debug-rollout-data-subsample", "1.5"],
            "it must be above 0 and at most 1",
        ),
    ],
)
def test_what_cannot_be(flags: list[str], why: str) -> None:
    with pytest.raises(ImpossibleCombination) as caught:
        parse_train([*LINE, *flags])
    assert why in str(caught.value)

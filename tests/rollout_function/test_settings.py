"""The flags of rollout functions: what slime's own values mean, and what cannot be together."""

import shlex

import pytest

from schemas.errors import ConfigError, ImpossibleCombination
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.derivations import derive
from slime_events.core.config.flags import ParsedTrain
from slime_events.loop.conductor.plan import make_plan

LOOP = "slime.rollout.sglang_rollout.generate_rollout"
ASYNC = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
EVALUATED = "--eval-interval 2 --eval-prompt-data held held.jsonl"


def parse(line: str) -> ParsedTrain:
    return parse_train(shlex.split(f"--hf-checkpoint m --prompt-data p.jsonl --num-rollout 4 {line}"))


@pytest.mark.parametrize(
    ("line", "trains", "evaluates"),
    [
        (f"--rm-type math --rollout-function-path {LOOP} {EVALUATED}", None, None),
        (f"--rm-type math --rollout-function-path {LOOP} --eval-function-path {LOOP} {EVALUATED}", None, None),
        (f"--rollout-function-path m.f {EVALUATED}", "m.f", "m.f"),
        (f"--rollout-function-path m.f --eval-function-path {LOOP} {EVALUATED}", "m.f", None),
        ("--rm-type math --eval-function-path m:g --eval-interval 1", None, "m:g"),
        ("--rollout-function-path m.f", "m.f", None),
    ],
)
def test_who_makes_steps_and_evaluations(line: str, trains: str | None, evaluates: str | None) -> None:
    settings = parse(line).settings
    plan = make_plan(settings.rollout, settings.evaluation, settings.trainer)
    assert (settings.rollout.rollout_function_path, settings.evaluation.own_function) == (trains, evaluates)
    assert (plan.by_function, plan.evals_by_function) == (trains is not None, evaluates is not None)
    assert bool(plan.evals) == (evaluates is None and "eval-prompt-data" in line)
    assert derive(settings)[0] == settings


@pytest.mark.parametrize(("more", "staleness"), [("", 1), ("--max-staleness 3", 3)])
def test_slimes_fully_asynchronous_loop_is_a_staleness(more: str, staleness: int) -> None:
    for line in (f"{more} --rollout-function-path {ASYNC}", f"--rollout-function-path {ASYNC} {more}"):
        parsed = parse(f"--rm-type math {line}")
        assert parsed.settings.rollout.max_staleness == staleness
        assert parsed.settings.rollout.rollout_function_path is None


def test_a_step_has_as_many_samples_as_are_returned() -> None:
    free = parse("--rollout-function-path m.f --num-steps-per-rollout 2").settings.trainer
    assert (free.global_batch_size, free.num_steps_per_rollout) == (None, 2)
    fixed = parse("--rollout-function-path m.f --global-batch-size 64").settings.trainer
    assert (fixed.global_batch_size, fixed.num_steps_per_rollout) == (64, 2)


@pytest.mark.parametrize("path", ["slime.rollout.sleep_rollout.sleep", "slime.rollout.forge_load:generate_rollout"])
def test_slimes_loops_that_have_no_place_here(path: str) -> None:
    with pytest.raises(ConfigError, match="is not supported"):
        parse(f"--rm-type math --rollout-function-path {path}")


@pytest.mark.parametrize(
    "line",
    [
        "--rm-type math --eval-function-path m.f",
        "--rollout-function-path m.f --supervised --loss-type sft_loss --n-samples-per-prompt 1",
        "--rollout-function-path m.f --archive-prompts a --archive-reuse rollouts --use-tis",
    ],
)
def test_what_cannot_be_together(line: str) -> None:
    with pytest.raises(ImpossibleCombination, match="function_path"):
        parse(line)

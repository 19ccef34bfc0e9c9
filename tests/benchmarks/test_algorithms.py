"""Test the settings and figures of the runs of `benchmarks.algorithms`. The runs take minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.algorithms import RECIPES, SFT, Outcome, markdown, supervised_flags
from slime_events.algorithms.estimators import ESTIMATORS
from slime_events.algorithms.train_arguments import parse_train
from slime_events.app.cli.commands.demo import with_flags
from slime_events.app.demo.settings import demo_settings
from slime_events.core.config.flags import ParsedTrain


def parsed(name: str) -> ParsedTrain:
    if name == SFT:
        return parse_train(["--run", name, *supervised_flags(Path("chats.jsonl"), 40), *RECIPES[name].split()])
    return with_flags(demo_settings(Path("data")), RECIPES[name].split())


@pytest.mark.parametrize("name", RECIPES)
def test_each_flag_of_a_recipe_has_an_effect(name: str) -> None:
    assert [note for note in parsed(name).notes if "no effect" in note] == []


def test_every_estimator_has_a_recipe_and_no_two_are_the_same() -> None:
    settings = {name: parsed(name).settings for name in RECIPES}
    assert {setting.algorithm.advantage_estimator for setting in settings.values()} == set(ESTIMATORS)
    assert len({repr(setting) for setting in settings.values()}) == len(RECIPES)


def outcome(**changes: object) -> Outcome:
    fields = {
        "algorithm": "grpo", "flags": "", "steps": 4, "evals": {0: 0.5, 2: 0.7, 4: 0.9}, "rewards": (0.25, 0.75),
        "seconds": 12.0, "weights": "a", "retrained": 4, "audited": 30, "replayed": 1234,
    }  # fmt: skip
    return Outcome(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_run_that_is_not_clean_has_no_figure() -> None:
    assert outcome().figure.met is True
    assert outcome(evals={0: 0.5, 4: 0.55}).figure.met is False
    broken = outcome(problems=("audit ended with 1: x",))
    assert broken.figure.value is None
    assert broken.figure.met is False
    rows = [line.split(" | ") for line in markdown([outcome(), broken]).splitlines()]
    assert {len(row) for row in rows} == {9}
    assert rows[2][1] == "0.500 -> 0.900"
    assert rows[2][5:8] != rows[3][5:8]


def test_the_page_has_each_of_them_as_it_was_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    rows = (line.strip("| ").split(" | ") for line in page.splitlines())
    shown = {row[0]: row[-1].strip("`") for row in rows if len(row) == 9 and row[0] in RECIPES}
    assert shown == dict(RECIPES)

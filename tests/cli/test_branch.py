"""`slime-events branch`: its own words, and the settings of a branch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from schemas.errors import ConfigError, ImpossibleCombination, InvalidValue
from slime_events.algorithms.train_arguments import parse_train
from slime_events.app.cli.commands.branch import check_arguments
from slime_events.app.demo.settings import BASE, demo_settings
from slime_events.app.launch.branch_settings import branch_settings, check_branch
from slime_events.core.config.derivations import derive
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from tests.cli.invoke import arguments


@pytest.fixture
def parent(tmp_path: Path) -> TrainSettings:
    settings = derive(demo_settings(tmp_path))[0]
    trainer = msgspec.structs.replace(settings.trainer, save="/checkpoints", load="/first")
    return msgspec.structs.replace(settings, trainer=trainer)


def test_its_own_arguments_are_apart_from_the_flags() -> None:
    parsed = arguments(
        *("branch", "demo", "--lr", "1e-5", "--from=5", "--run", "b", "--reset-optimizer", "--rollout-stop", "x", "y")
    )
    assert (parsed.run, parsed.version, parsed.runs_dir, parsed.reset_optimizer) == ("demo", 5, None, True)
    assert (parsed.name, parsed.flags) == ("b", ("--lr", "1e-5", "--rollout-stop", "x", "y"))


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ([], "RUN"),
        (["demo", "--run", "b"], "--from"),
        (["demo", "--from", "5"], "--run"),
        (["demo", "--from", "last", "--run", "b"], "last"),
        (["demo", "--run"], "--run"),
    ],
)
def test_a_missing_argument_is_named(words: list[str], missing: str) -> None:
    with pytest.raises(InvalidValue, match=missing):
        check_arguments(arguments("branch", *words))


def test_a_branch_writes_no_dumps_of_its_parent(parent: TrainSettings) -> None:
    flags = ("--dump-details", "/d", "--load-debug-rollout-data", "/e/{rollout_id}.pt")
    dumping = parse_train(["--config", "parent", *flags], read=lambda _: to_toml(parent)).settings
    own = ["--run", "b", "--save-debug-train-data", "/b/{rollout_id}.pt"]
    debug = branch_settings(dumping, "/runs", own).settings.debug
    assert (debug.save_debug_rollout_data, debug.save_debug_train_data) == (None, "/b/{rollout_id}.pt")
    assert debug.load_debug_rollout_data == "/e/{rollout_id}.pt"


def test_what_no_flag_changes_is_the_parents(parent: TrainSettings) -> None:
    own = branch_settings(parent, "/runs", ["--run", "b", "--lr", "3e-4", "--rollout-batch-size", "8"]).settings
    assert (own.run.run, own.run.runs_dir) == ("b", "/runs")
    assert (own.trainer.lr, own.trainer.adam_beta2, own.trainer.global_batch_size) == (3e-4, 0.99, 64)
    assert (own.trainer.save, own.trainer.load) == (None, None), "its parent's checkpoints are not its own"
    assert (own.data, own.reward, own.algorithm) == (parent.data, parent.reward, parent.algorithm)
    check_branch(parent, own, 59, fresh_optimizer=False)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--num-rollout", "5"], "--num-rollout 5: .* give more than 5"),
        (["--optimizer", "sgd"], "--optimizer: .* --reset-optimizer"),
        (["--bf16"], "--bf16: "),
        (["--run", "demo"], "--run demo: the parent has that name"),
        (["--load", "/x"], "--load: "),
    ],
)
def test_what_cannot_be_another_is_named(parent: TrainSettings, flags: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check_branch(
            parent, branch_settings(parent, "/runs", ["--run", "b", *flags]).settings, 5, fresh_optimizer=False
        )


def test_a_new_optimizer_may_be_another(parent: TrainSettings) -> None:
    own = branch_settings(parent, "/runs", ["--run", "b", "--optimizer", "sgd"]).settings
    check_branch(parent, own, 5, fresh_optimizer=True)


def test_another_shape_of_the_model_is_named(parent: TrainSettings, tmp_path: Path) -> None:
    shutil.copytree(BASE, tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | {"intermediate_size": 1024}))
    own = branch_settings(parent, "/runs", ["--hf-checkpoint", str(tmp_path / "other")]).settings
    with pytest.raises(ImpossibleCombination, match="other: ffn_hidden_size is 1024 there, and "):
        check_branch(parent, own, 5, fresh_optimizer=False)

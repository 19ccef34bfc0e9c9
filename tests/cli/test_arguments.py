"""The argument tree: what each command takes, and where a word belongs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.errors import InvalidValue, UnknownFlag
from slime_events.app.cli.arguments import COMMANDS, RETRAIN_BRANCH, module_of, tree
from tests.cli.invoke import arguments


def test_every_command_has_a_module_that_runs_it() -> None:
    tree()  # every declaration can be made
    for name in (*COMMANDS, RETRAIN_BRANCH):
        module = importlib.import_module(module_of(name))
        assert callable(module.run)


def test_no_command_is_imported_to_read_a_command_line() -> None:
    program = (
        "import sys; from slime_events.app.cli.main import parse; parse(['doctor', '--quick']); parse(['demo']); "
        "print([name for name in sys.modules if '.cli.commands.' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_positionals_may_stand_behind_options() -> None:
    parsed = arguments("query", "--format", "csv", "demo", "--rows=3", "SELECT 1")
    assert (parsed.run, parsed.sql, parsed.format, parsed.rows) == ("demo", "SELECT 1", "csv", 3)
    parsed = arguments("tail", "demo", "--type", "run", "step", "--json")
    assert (parsed.run, parsed.type, parsed.json) == ("demo", ["run", "step"], True)


def test_a_value_may_begin_with_a_dash() -> None:
    parsed = arguments("show", "demo", "--at", "-90s", "--step", "-1")
    assert (parsed.at, parsed.step) == ("-90s", -1)
    assert arguments("produce", "demo", "-").file == "-"


def test_an_option_may_be_cut_short_where_no_settings_flags_stand() -> None:
    assert arguments("show", "demo", "--vers", "3").version == 3
    assert arguments("replay", "demo", "--al", "x").flags == ("--al", "x")


def test_flags_of_settings_keep_their_order() -> None:
    parsed = arguments("resume", "demo", "--num-rollout", "6", "--runs-dir", "d", "--rollout-stop", "-1", "b")
    assert (parsed.run, parsed.runs_dir) == ("demo", "d")
    assert parsed.flags == ("--num-rollout", "6", "--rollout-stop", "-1", "b")


def test_retrain_into_a_branch_takes_what_learn_takes() -> None:
    parsed = arguments("retrain", "demo", "--branch=b", "--from", "v5", "--lr", "1")
    assert (parsed.command, parsed.name, parsed.version, parsed.flags) == (RETRAIN_BRANCH, "b", 5, ("--lr", "1"))
    assert arguments("retrain", "demo", "--steps", "1:2").command == "retrain"


@pytest.mark.parametrize(
    ("words", "error", "named"),
    [
        (["show", "demo", "--vesion", "3"], UnknownFlag, "--version"),
        (["show", "demo", "--step"], InvalidValue, "--step"),
        (["show", "demo", "--step", "--json"], InvalidValue, "--step"),
        (["show", "demo", "--step", "1", "--group", "g"], InvalidValue, "--group"),
        (["show", "demo", "other"], InvalidValue, "other"),
        (["export", "demo", "--to", "hfx", "--out", "x"], InvalidValue, "hfx"),
        (["export", "demo", "--to", "hf"], InvalidValue, "--out"),
        (["replay-rollout", "demo"], InvalidValue, "SAMPLE"),
        (["restore"], InvalidValue, "ARCHIVE_URL"),
        (["shwo"], InvalidValue, "show"),
    ],
)
def test_a_wrong_word_is_named(words: list[str], error: type[Exception], named: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=named):
        arguments(*words)

"""Every command line on every page is understood by the command that it names."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.errors import RunNotFound
from slime_events.app.cli.commands import branch, demo, doctor, learn, replay, rescore
from slime_events.app.cli.commands.resume import with_flags
from slime_events.app.cli.main import COMMANDS
from slime_events.app.cli.run_arguments import read_words
from slime_events.app.demo.settings import demo_settings
from tests.docs.commands import Command, commands_of
from tests.docs.pages import PAGES

COMMAND_LINES = [command for page in PAGES for command in commands_of(page)]


class Understood(Exception):
    """The command has read its words and begins to work."""


def _work(work: Coroutine[Any, Any, Any]) -> None:
    work.close()
    raise Understood


def _settings(flags: Sequence[str]) -> None:
    """Flags of a run's settings, on top of settings that can run and whose batch is of any size."""
    base = demo_settings(Path("data"))
    trainer = replace(base.trainer, global_batch_size=None, num_steps_per_rollout=None)
    with_flags(replace(base, trainer=trainer), [flag for flag in flags if flag != "flags"])


def _train(words: Sequence[str]) -> None:
    at = words.index("--config") if "--config" in words else len(words)
    _settings([*words[:at], *words[at + 2 :]])


def _learn(words: Sequence[str]) -> None:
    _, asked = learn._asked(words, "--branch" if "--branch" in words else "--run")
    _settings(asked.flags)


OWN: dict[str, Callable[[list[str]], object]] = {
    "train": _train,
    "demo": lambda words: _settings(demo.read_options(words).flags),
    "resume": lambda words: _settings(read_words(words, ("--runs-dir",)).flags),
    "branch": lambda words: _settings(branch.read_words(words).flags),
    "learn": _learn,
    "replay": lambda words: _settings(replay._parser().parse_known_args(words)[1]),
    "rescore": lambda words: _settings(rescore._parser().parse_known_args(words)[1]),
    "doctor": doctor._options,
}
"""Commands that look at the machine first, or take the flags of a run's settings; the others read words, then run."""


def _understand(command: Command) -> None:
    name, *words = command.words
    assert name in COMMANDS, "there is no such command"
    if not words or "--help" in words:
        return
    if name == "retrain" and "--branch" in words:
        name = "learn"
    if name in OWN:
        OWN[name](words)
        return
    for file in (word for word in words if word.endswith(".sql")):
        Path(file).write_text("SELECT 1")
    try:
        importlib.import_module(COMMANDS[name][0]).main(words)
    except (Understood, RunNotFound):
        return
    raise AssertionError("it ended without a run to look at")


def test_every_command_line_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(asyncio, "run", _work)
    wrong = []
    for command in COMMAND_LINES:
        try:
            _understand(command)
        except (Exception, SystemExit) as error:
            wrong.append(f"{command}\n    {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
    assert {line.words[0] for line in COMMAND_LINES if line.page == "README.md"} == set(COMMANDS), "it lists them all"

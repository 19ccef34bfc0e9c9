"""Every command line on every page is understood by the command that it names."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.errors import RunNotFound
from slime_events.app.cli.arguments import COMMANDS, RETRAIN_BRANCH
from slime_events.app.cli.commands.resume_run import with_flags
from slime_events.app.cli.main import parse, run_command
from slime_events.app.demo.settings import demo_settings
from tests.docs.commands import Command, commands_of
from tests.docs.pages import PAGES

COMMAND_LINES = [command for page in PAGES for command in commands_of(page)]


NOT_RUN = {
    "doctor",
    "nats-config",
    *(name for name, command in COMMANDS.items() if command.takes_flags),
    RETRAIN_BRANCH,
}
"""Commands that look at the machine first, or write; the others run until they look for their run."""


class Understood(Exception):
    """The command has read its words and begins to work."""


def _work(work: Coroutine[Any, Any, Any]) -> None:
    work.close()
    raise Understood


def _settings(flags: Sequence[str]) -> None:
    """Flags of a run's settings, on top of settings that can run and whose batch is of any size."""
    if "--config" in flags:
        at = flags.index("--config")
        flags = [*flags[:at], *flags[at + 2 :]]
    base = demo_settings(Path("data"))
    trainer = replace(base.trainer, global_batch_size=None, num_steps_per_rollout=None)
    engine = replace(base.engine, colocate=False, sglang={})
    with_flags(replace(base, trainer=trainer, engine=engine), [flag for flag in flags if flag != "flags"])


def _understand(command: Command) -> None:
    if len(command.words) == 1:
        assert command.words[0] in COMMANDS
        return
    for file in (word for word in command.words if word.endswith(".yaml")):
        models = "sglang: [{name: actor, server_groups: [{num_gpus: 1}]}]"
        Path(file).write_text(models if "--sglang-config" in command.words else "datasets: {a: {path: a.jsonl}}")
    parsed = parse(command.words)
    if parsed is None:
        return  # it asks for the help
    if parsed.command == RETRAIN_BRANCH or COMMANDS[parsed.command].takes_flags:
        _settings(parsed.flags)
    for file in (word for word in command.words if word.endswith(".sql")):
        Path(file).write_text("SELECT 1")
    if parsed.command in NOT_RUN:
        return
    try:
        run_command(command.words)
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

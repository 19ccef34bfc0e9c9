"""Test the status of a run: by its log, and by the launcher that has it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from schemas.event import Event
from schemas.runs import FinishReason, RunFailed
from slime_events.app.cli.arguments import COMMANDS
from slime_events.app.cli.commands.show_at import moment_facts
from slime_events.app.cli.main import main
from slime_events.app.cli.run_list import run_rows
from slime_events.app.launch.launcher_presence import present
from slime_events.app.launch.run_lock import holding
from slime_events.app.launch.run_status import read_status
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import open_run
from slime_events.model.run_status import RunStatus
from storage.jetstream.address import NatsPlace
from storage.jetstream.log import JetStreamLog
from storage.nats.server import NatsServer
from storage.open_log import record_place
from tests import made
from tests.cli.small_run import recorded

STARTED = made.started({"rollout": {"num_rollout": 2}}, code_version="0")
RESUMED = made.resumed(code_version="0")
FAILED = RunFailed(role="trainer", reason="rank 0 lost its device")
INTERRUPTED = made.finished(FinishReason.INTERRUPTED)
FINISHED = made.finished(steps=2)
LOGS: dict[str, Sequence[Event]] = {
    "killed": [STARTED],
    "killed-again": [STARTED, INTERRUPTED, RESUMED],
    "on": [STARTED],
    "elsewhere": [STARTED],
    "failed": [STARTED, FAILED],
    "interrupted": [STARTED, INTERRUPTED],
    "finished": [STARTED, FAILED, RESUMED, FINISHED],
}


@contextlib.asynccontextmanager
async def runs(folder: Path) -> AsyncIterator[dict[str, RunFolder]]:
    """A folder for each of LOGS on one NATS server. "on" has a launcher here, "elsewhere" one on another machine."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(await NatsServer.start(folder / "server"))
        folders = {}
        for name, events in LOGS.items():
            run = folders[name] = RunFolder.create(folder / "runs", name)
            run.settings.write_text(f'[run]\nrun = "{name}"\n[rollout]\nnum_rollout = 2\n')
            record_place(run.path, NatsPlace(url=server.url))
            log = await JetStreamLog.open(server.url, name)
            stack.push_async_callback(log.close)
            await made.say(log, *events)
            if name == "elsewhere":
                await stack.enter_async_context(present(log))
        stack.enter_context(holding(folders["on"]))
        yield folders


async def test_a_run_is_said_to_be_on_where_a_launcher_is_and_nowhere_else(tmp_path: Path) -> None:
    statuses = {}
    async with runs(tmp_path) as folders:
        for name, folder in folders.items():
            async with open_run(str(folder.path)) as opened:
                statuses[name] = await read_status(opened)
        listed = {row.run: row.status for row in await asyncio.to_thread(run_rows, tmp_path / "runs")}
        facts = {name: await _shown(folder, "--json") for name, folder in folders.items()}
    assert statuses == {
        "killed": RunStatus.KILLED,
        "killed-again": RunStatus.KILLED,
        "on": RunStatus.RUNNING,
        "elsewhere": RunStatus.RUNNING,
        "failed": RunStatus.FAILED,
        "interrupted": RunStatus.INTERRUPTED,
        "finished": RunStatus.FINISHED,
    }
    assert listed == statuses
    assert {name: json.loads(text)["phase"] for name, text in facts.items()} == statuses


async def _shown(folder: RunFolder, *words: str) -> str:
    """Return what `show` prints, in a thread: it runs an event loop of its own."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert await asyncio.to_thread(main, ["show", str(folder.path), *words]) == 0
    return out.getvalue()


async def test_a_moment_after_which_nobody_said_more_is_not_one_of_a_run_that_is_on(tmp_path: Path) -> None:
    async with runs(tmp_path) as folders:
        at = {}
        for name, place in (("killed", "1"), ("on", "1"), ("finished", "1"), ("finished", "4")):
            async with open_run(str(folders[name].path)) as opened:
                at[name, place] = (await moment_facts(opened, place))[0]["phase"]
    assert at == {("killed", "1"): "killed", ("on", "1"): "running", ("finished", "1"): "running",
                  ("finished", "4"): "finished"}  # fmt: skip


async def test_an_archive_does_not_say_whether_its_run_is_on(tmp_path: Path) -> None:
    for name, events, status in (("open", [STARTED], RunStatus.UNENDED), ("over", [STARTED, FAILED], RunStatus.FAILED)):
        made.archived(tmp_path / name, recorded(events))
        async with open_run(f"{tmp_path / name}/small") as opened:
            assert await read_status(opened) is status


async def test_a_killed_run_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slime_events.app.follow_events.QUIET_S", 0.05)
    async with runs(tmp_path) as folders:
        code = await asyncio.wait_for(asyncio.to_thread(main, ["tail", str(folders["killed"].path)]), 30)
    assert code == 0


def test_a_summary_of_a_life_before_does_not_say_how_the_run_stands(tmp_path: Path) -> None:
    async def killed_after_an_end() -> list[RunStatus | None]:
        async with runs(tmp_path) as folders:
            for name, phase in (("killed-again", "finished"), ("interrupted", "finished")):
                folders[name].summary.write_text(json.dumps({"phase": phase, "steps": 1}))
            settings = folders["killed-again"].settings
            settings.write_text(settings.read_text())  # as a resumption does
            rows = {row.run: row.status for row in await asyncio.to_thread(run_rows, tmp_path / "runs")}
            return [rows["killed-again"], rows["interrupted"]]

    assert asyncio.run(killed_after_an_end()) == [RunStatus.KILLED, RunStatus.INTERRUPTED]


WITHOUT_A_RUN = ("train", "demo", "doctor", "restore", "nats-config", "convert", "console", "plan")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in WITHOUT_A_RUN])
def test_without_a_run_every_command_lists_them(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.create(tmp_path, "mine")
    folder.settings.write_text("[rollout]\nnum_rollout = 2\n")
    folder.summary.write_text(json.dumps({"phase": "finished", "steps": 1}))
    assert main([command, "--runs-dir", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert "mine" in output.out
    assert "interrupted" in output.out
    assert "Traceback" not in output.err

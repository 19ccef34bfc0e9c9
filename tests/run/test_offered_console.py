"""The console that a launcher offers while a run is on: it costs a socket until somebody looks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import psutil
import pytest

from slime_events.app.launch import offered_console
from slime_events.app.launch.offered_console import console_offered
from slime_events.core.run.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run_folder = RunFolder.create(tmp_path / "runs", "it")
    run_folder.logs.mkdir(parents=True, exist_ok=True)
    return run_folder


def consoles() -> list[psutil.Process]:
    """The processes of consoles that this process has started."""
    children = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any("console_of_run" in word for word in process.cmdline()):
                children.append(process)
    return children


def address(note: str) -> tuple[str, str]:
    """The URL and the token in a note."""
    url = urlsplit(note.split()[-1])
    assert url.path == "/runs/it/now"
    return f"{url.scheme}://{url.netloc}", parse_qs(url.fragment)["token"][0]


async def test_a_console_starts_at_a_request_again_if_it_is_killed_and_ends_with_the_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offered_console, "FIRST_PAUSE_S", 0.01)
    notes: list[str] = []
    async with console_offered(None, folder, notes.append):
        url, token = address(notes[0])
        assert consoles() == []
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            assert (await client.get("/api/runs")).status_code == 401
        (process,) = consoles()
        os.kill(process.pid, signal.SIGKILL)
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            answer = await client.get("/api/runs", headers=headers)
            assert (answer.status_code, answer.json()["runs"]) == (200, [])
            assert (await client.get("/api/runs", headers=headers | {"Host": "evil.example"})).status_code == 421
        (process,) = consoles()
    assert not process.is_running()
    assert len(notes) == 2
    assert "SIGKILL" in notes[1]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))
    assert b"Traceback" not in (folder.logs / "console.log").read_bytes()


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Consoles end at their start."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(offered_console, "FIRST_PAUSE_S", 0.01)
    return


@pytest.mark.usefixtures("failing")
async def test_a_console_that_fails_is_a_note(folder: RunFolder) -> None:
    notes, failed = list[str](), asyncio.Event()

    def note(text: str) -> None:
        notes.append(text)
        if len(notes) == 3:
            failed.set()

    async with console_offered(None, folder, note):
        url, _ = address(notes[0])
        with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)):
            await failed.wait()  # the request still waits, so the second start is at once
    assert all(str(folder.logs / "console.log") in text for text in notes[1:])


async def test_a_taken_port_is_a_note_and_no_console(folder: RunFolder) -> None:
    notes: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with console_offered(port, folder, notes.append):
            pass
    (note,) = notes
    assert str(port) in note
    assert "slime-events console" in note


async def test_two_runs_have_two_addresses_and_zero_is_none(folder: RunFolder) -> None:
    notes: list[str] = []
    async with console_offered(None, folder, notes.append), console_offered(None, folder, notes.append):
        (url, token), (other, other_token) = map(address, notes)
        assert url != other
        assert token != other_token
    async with console_offered(0, folder, pytest.fail):
        pass

"""A command in a child process: whatever becomes of it, its parent ends with a reason and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from tests.run.tiny import MARK, left_behind, marked

HEAD = """
import ctypes, os, signal, subprocess, sys, time
from slime_events.app.cli.watched import announce_recovery, watched

def sleeper():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)

def ready():
    open("ready", "w").close()
    time.sleep(600)
"""


class Started:
    """A process that watches a command. body: of the command; before: what is done before it is there."""

    def __init__(self, folder: Path, mark: str, body: str, *, before: str = "") -> None:
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        script = f"{HEAD}\n{before}\n\ndef command():\n{lines}\n\nsys.exit(watched(command))\n"
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", script], cwd=folder, env=os.environ | {MARK: mark}, stderr=subprocess.PIPE, text=True
        )

    def until_ready(self) -> None:
        """The command has come so far."""
        end = time.monotonic() + 60
        while not (self.folder / "ready").exists():
            assert self.process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)

    def ends(self) -> tuple[int, str]:
        """Its exit code, and what it has said."""
        errors = self.process.communicate(timeout=60)[1]
        return self.process.returncode, errors


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


@pytest.mark.parametrize(
    ("body", "code"),
    [("return 0", 0), ("return 2", 2), ("sys.exit(3)", 3), ("raise KeyboardInterrupt", 130)],
)
def test_a_command_that_says_its_code_has_it(tmp_path: Path, mark: str, body: str, code: int) -> None:
    assert Started(tmp_path, mark, body).ends() == (code, "")


def test_a_traceback_is_no_end_without_a_word(tmp_path: Path, mark: str) -> None:
    code, errors = Started(tmp_path, mark, "raise ValueError('a fault of ours')").ends()
    assert code == 1
    assert "a fault of ours" in errors
    assert "error: the launcher" not in errors


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("os._exit(0)", 1),
        ("os._exit(1)", 1),
        ("os.abort()", 128 + signal.SIGABRT),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
    ],
)
def test_one_that_is_ended_from_within_is_reported_and_cleared_up(
    tmp_path: Path, mark: str, body: str, code: int
) -> None:
    ended, errors = Started(tmp_path, mark, f"announce_recovery('`slime-events resume y`')\nsleeper()\n{body}").ends()
    assert ended == code
    assert [line for line in errors.splitlines() if line.startswith("error: ")]
    assert "slime-events resume y" in errors
    assert left_behind(mark, 5.0) == []


def test_one_that_crashes_after_its_end_has_ended_as_it_said(tmp_path: Path, mark: str) -> None:
    assert Started(tmp_path, mark, "import atexit\natexit.register(os.abort)\nreturn 2").ends()[0] == 2


def test_one_that_does_not_end_after_its_end_is_ended(tmp_path: Path, mark: str) -> None:
    hangs = "import atexit\natexit.register(time.sleep, 600)\nreturn 0"
    assert (
        Started(tmp_path, mark, hangs, before="import slime_events.app.cli.watched as w\nw.END_S = 0.1").ends()[0] == 0
    )
    assert left_behind(mark, 5.0) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on_each_once(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    body = (
        "heard = []\n"
        f"signal.signal({int(number)}, lambda *_: heard.append(1))\n"
        "open('ready', 'w').close()\n"
        "while len(heard) < 2: time.sleep(0.01)\n"
        "return 40 + len(heard)"
    )
    started = Started(tmp_path, mark, body)
    started.until_ready()
    started.process.send_signal(number)
    time.sleep(0.2)
    assert started.process.poll() is None, "one signal counts once"
    started.process.send_signal(number)
    assert started.ends() == (42, "")


def test_kill_9_of_the_parent_kills_the_child(tmp_path: Path, mark: str) -> None:
    started = Started(tmp_path, mark, "ready()")
    started.until_ready()
    (child,) = psutil.Process(started.process.pid).children()
    started.process.kill()
    started.ends()
    child.wait(10)
    assert marked(mark) == []

"""`play`: one case, from its command to its end, and its differences from the page."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.harness.docs_run.blocks import Start, notes_and_errors
from tests.harness.docs_run.case import Case
from tests.harness.docs_run.stage import Stage

DEADLINE_S, LOOK_S, ENDS_S = 300.0, 0.1, 30.0
_NUMBER = re.compile(r"\d[\d,.]*")


class Played(NamedTuple):
    """A case that ran. command: as it was typed here. wrong: the differences from the page; empty if there are none."""

    command: str
    seconds: float
    wrong: list[str]


def command_of(case: Case, start: Start) -> str:
    """Return the page's command with the changes that shrink it. A program runs from the file that holds it."""
    text = case.command or ("python program.py" if start.body else start.text)
    if text.startswith("slime-events") and " ..." in text:
        filled = "" if "--prompt-data exported" in text else " --config settings.toml"
        changes = "".join(before for before, _ in case.changes)
        text = text if " ..." in changes else text.replace(" ...", filled, 1)
    return f"{text if start.body else _changed(text, case)} {case.more}".strip()


def play(case: Case, start: Start, stage: Stage) -> Played:
    """Run it in the stage's folder."""
    stage.take(case.page)
    if start.body:
        (stage.home / ("page.toml" if start.text.startswith("[") else "program.py")).write_text(
            _changed(start.body, case)
        )
    if case.before is not None:
        case.before(stage)
    command, begun = _filled(command_of(case, start), stage), time.monotonic()
    wrong: list[str] = []
    with _running(command, stage, case) as process, _beside(case, stage, wrong):
        code = _wait(process, case, stage)
    output = stage.printed()
    if code is None:
        wrong.append(f"no end within {DEADLINE_S:.0f} s")
    else:
        wrong += _differences(case, start, code, output, stage.home)
    if wrong:
        wrong.append(f"the end of what it said:\n{output[-3000:]}")
    return Played(command, time.monotonic() - begun, wrong)


def _changed(text: str, case: Case) -> str:
    for before, after in case.changes:
        if before not in text:
            raise ValueError(f"{case.page}: {case.text}: {before!r} is not in it")
        text = text.replace(before, after)
    return text


def _filled(command: str, stage: Stage) -> str:
    """Return the command with a free port for each {port:NAME}."""
    return re.sub(r"\{port:(\w+)\}", lambda match: str(stage.port(match[1])), command)


@contextlib.contextmanager
def _running(command: str, stage: Stage, case: Case) -> Iterator[subprocess.Popen[bytes]]:
    stage.output.unlink(missing_ok=True)
    with stage.output.open("ab") as out:  # what works beside it writes there too
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}" if command.startswith("slime-events") else command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=stage.home,
            env=stage.environment(case.parts.value),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDS_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has left in its session
        process.wait()


@contextlib.contextmanager
def _beside(case: Case, stage: Stage, wrong: list[str]) -> Iterator[None]:
    def work() -> None:
        assert case.beside is not None
        try:
            case.beside(stage)
        except Exception:
            wrong.append(f"what works beside it: {traceback.format_exc(limit=-2)}")

    if case.beside is None:
        yield
        return
    stage.ended.clear()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stage.ended.set()
        thread.join(ENDS_S)


def _wait(process: subprocess.Popen[bytes], case: Case, stage: Stage) -> int | None:
    """Return the exit code; None at the deadline."""
    until, done = time.monotonic() + DEADLINE_S, False
    while time.monotonic() < until:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK_S)
        if done:
            continue
        if case.killed and re.search(case.killed, stage.printed()):
            process.kill()
            done = True
        elif case.stopped and re.search(case.stopped, stage.printed()):
            process.send_signal(signal.SIGINT)
            done = True
    return None


def _differences(case: Case, start: Start, code: int, output: str, home: Path) -> Iterator[str]:
    shown = notes_and_errors(start) if case.shown else []
    errors = any(line.startswith("error: ") for line in shown)
    expected = -signal.SIGKILL if case.killed else case.code if case.code is not None else 2 if errors else 0
    if code != expected:
        yield f"exit code {code} instead of {expected}"
    if "Traceback" in output:
        yield "a traceback"
    plain = _NUMBER.sub("#", output.replace(f"{home}/", "/home/me/"))
    for line in shown:
        if not re.search(_as_shown(line), plain):
            yield f"the page shows, and it did not say: {line}"
    for pattern in (*case.says, *([_steps_done(case.steps)] if case.steps is not None else [])):
        if not re.search(pattern, output):
            yield f"it did not say {pattern!r}"


def _as_shown(line: str) -> str:
    """Return a pattern that takes any number for a number, and anything for `...`."""
    parts = (re.escape(_NUMBER.sub("#", part)) for part in line.split("..."))
    return ".*".join(parts)


def _steps_done(steps: int) -> str:
    return rf"\bstep {steps}/{steps}\b|\b{steps} steps\b|has weight version {steps} after"

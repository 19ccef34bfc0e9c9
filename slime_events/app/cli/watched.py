"""`watched`: a command in a child process, and this process, which has the last word on how it ended.

Ray's C++ runs in the process that launches a run, and ends it by its own hand where Ray's servers are gone: without a
`finally`, a reason or a chance to stop what was started. So the launcher is a child. Here nothing runs but this:
signals are passed on, and where the child ends without having said its exit code, that is said, and what it left is
ended. Killing this process kills the child with it, as if they were one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

MARK = "SLIME_EVENTS_WATCHED"
"""Whatever the child starts inherits this variable."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM)
LOOK_S = 0.1
END_S = 30.0
"""Seconds that a child has to end after it has said its exit code."""
_PR_SET_PDEATHSIG = 1
_ENDED = b"ended "
_say_to: int | None = None


def watched(command: Callable[[], int]) -> int:
    """The exit code of `command`, which runs in a child; in the child too. Call it before there are threads."""
    global _say_to
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    mark, parent = secrets.token_hex(16), os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, signal.SIGTSTP))
    child = os.fork()
    if child:
        os.close(writer)
        return _watch(child, reader, mark, before)
    os.close(reader)
    _say_to = writer
    os.environ[MARK] = mark
    _end_with(parent)
    os.setpgid(0, 0)  # a terminal's Ctrl-C comes by the parent alone, so that it comes once
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _run(command)


def say_how_to_go_on(sentence: str) -> None:
    """What the parent says where this process ends without a word. Nothing in a process that nobody watches."""
    if _say_to is not None:
        os.write(_say_to, sentence.replace("\n", " ").encode() + b"\n")


def _run(command: Callable[[], int]) -> int:
    """The command in the child. Whatever Python makes of its end is the end that it has."""
    code = 1
    try:
        code = command()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        assert _say_to is not None
        os.write(_say_to, _ENDED + str(code).encode() + b"\n")
    return code


def _end_with(parent: int) -> None:
    """Be killed when the parent is. Where the system knows no such thing the child goes on, as a daemon would."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _watch(child: int, reader: int, mark: str, mask: set[int]) -> int:
    """Until the child has ended. mask: of signals, to be set once they are passed on."""
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: _pass_on(child, number, frame))
    signal.signal(signal.SIGTSTP, lambda number, frame: _stop(child))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    said, status = b"", None
    ended_at = float("inf")
    while status is None:
        if select.select([reader], [], [], LOOK_S)[0]:
            more = os.read(reader, 65536)
            said += more
            if not more:
                time.sleep(LOOK_S)
        if ended_at == float("inf") and _code_in(said) is not None:
            ended_at = time.monotonic() + END_S
        if time.monotonic() > ended_at:  # Ray's threads may keep a process that has nothing left to do
            os.kill(child, signal.SIGKILL)
        pid, waited = os.waitpid(child, os.WNOHANG)
        status = waited if pid else None
    while select.select([reader], [], [], 0)[0] and (more := os.read(reader, 65536)):
        said += more
    code = _code_in(said)
    return code if code is not None else _without_a_word(os.waitstatus_to_exitcode(status), said, mark)


def _code_in(said: bytes) -> int | None:
    found = [line for line in said.splitlines(keepends=True) if line.startswith(_ENDED) and line.endswith(b"\n")]
    return int(found[-1].removeprefix(_ENDED)) if found else None


def _without_a_word(code: int, said: bytes, mark: str) -> int:
    """Say so, and end what is left. code: of the child, negative for a signal."""
    from schemas.errors import SlimeEventsError
    from slime_events.app.launch.orphans import end_orphans

    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"was ended with code {code}"
    lines = said.decode(errors="replace").splitlines()
    more = f". Everything that was acked is in the log: {lines[-1]}" if lines else ""
    print(f"error: the launcher {how} from within or by the system, not by its own decision{more}", file=sys.stderr)
    try:
        count = end_orphans(mark, variable=MARK)
    except SlimeEventsError as error:
        print(f"note: {error}", file=sys.stderr)
    else:
        if count:
            print(f"note: ended {count} processes that it had left", file=sys.stderr)
    return 128 - code if code < 0 else code or 1


def _pass_on(child: int, number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def _stop(child: int) -> None:
    """Ctrl-Z: the child and what is with it rest as long as this process does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.killpg(child, signal.SIGCONT)

"""`watched`: run a command in a child process and report how the child ended.

Ray's C++ code runs in the process that launches a run. If Ray's servers are gone, that code ends the process without a
`finally` and without a reason. So the launcher is a child. The parent forwards signals. If the child ends without
sending its exit code, the parent reports this and ends the processes that the child left. To kill the parent kills the
child too.
"""

import contextlib
import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from slime_events.core.child.inside import die_with

MARK = "SLIME_EVENTS_WATCHED"
"""Environment variable that all processes of the child inherit."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM)
LOOK_S = 0.1
END_S = 30.0
"""Seconds in which a child must exit after it has sent its exit code."""
_ENDED = b"ended "
_status_pipe: int | None = None


def watched(command: Callable[[], int]) -> int:
    """Run `command` in a child and return its exit code, in both processes. Call it before any thread starts."""
    global _status_pipe
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
    _status_pipe = writer
    os.environ[MARK] = mark
    die_with(parent)
    os.setpgid(0, 0)  # a terminal's Ctrl-C reaches only the parent, which forwards it, so that it arrives once
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _run(command)


def announce_recovery(sentence: str) -> None:
    """Send the parent the sentence to print if this process ends without its exit code. No effect without a parent."""
    if _status_pipe is not None:
        os.write(_status_pipe, sentence.replace("\n", " ").encode() + b"\n")


def _run(command: Callable[[], int]) -> int:
    """Run the command in the child and send its exit code to the parent. Exceptions propagate."""
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
        assert _status_pipe is not None
        os.write(_status_pipe, _ENDED + str(code).encode() + b"\n")
    return code


def _watch(child: int, reader: int, mark: str, mask: set[int]) -> int:
    """Wait for the child and return its exit code. mask: signal mask to set once the handlers are installed."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    def stop(number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-Z: stop the child's process group while this process is stopped."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.killpg(child, signal.SIGCONT)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.signal(signal.SIGTSTP, stop)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    output, status = b"", None
    ended_at = float("inf")
    while status is None:
        if select.select([reader], [], [], LOOK_S)[0]:
            more = os.read(reader, 65536)
            output += more
            if not more:
                time.sleep(LOOK_S)
        if ended_at == float("inf") and _code_in(output) is not None:
            ended_at = time.monotonic() + END_S
        if time.monotonic() > ended_at:  # Ray's threads may keep a finished process alive
            os.kill(child, signal.SIGKILL)
        pid, waited = os.waitpid(child, os.WNOHANG)
        status = waited if pid else None
    while select.select([reader], [], [], 0)[0] and (more := os.read(reader, 65536)):
        output += more
    code = _code_in(output)
    return code if code is not None else _report_silent_end(os.waitstatus_to_exitcode(status), output, mark)


def _code_in(output: bytes) -> int | None:
    ends = [line for line in output.splitlines(keepends=True) if line.startswith(_ENDED) and line.endswith(b"\n")]
    return int(ends[-1].removeprefix(_ENDED)) if ends else None


def _report_silent_end(code: int, output: bytes, mark: str) -> int:
    """Report how the child ended, and end the processes that it left. code: its exit code, negative for a signal."""
    from schemas.errors import SlimeEventsError
    from slime_events.core.run.orphans import end_orphans

    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"was ended with code {code}"
    lines = output.decode(errors="replace").splitlines()
    more = f". All acked events are in the log: {lines[-1]}" if lines else ""
    print(f"error: the launcher {how} unexpectedly, by a library or by the system{more}", file=sys.stderr)
    try:
        count = end_orphans(mark, variable=MARK)
    except SlimeEventsError as error:
        print(f"note: {error}", file=sys.stderr)
    else:
        if count:
            print(f"note: ended {count} processes that the launcher left", file=sys.stderr)
    return 128 - code if code < 0 else code or 1

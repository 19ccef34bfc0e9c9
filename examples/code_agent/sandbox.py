"""Run a program that a model wrote, in a separate Python process without our packages and with limited resources.

It limits time, memory and files. It is not a security boundary: for programs that could do harm, call it in a container
or a virtual machine.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile

CPU_S, WALL_S = 2, 10
MEMORY = 512 * 1024 * 1024
OUTPUT = 64 * 1024


def _limit() -> None:
    for what, most in (
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, OUTPUT),
        (resource.RLIMIT_NOFILE, 16),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def run(program: str) -> tuple[str, str]:
    """Run a program, and return its output and the name of its error, which is empty if there was none."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            cwd=folder,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=_limit,
        )
        try:
            code = process.wait(WALL_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed, errors = ((file.seek(0), file.read(OUTPUT))[1].decode(errors="replace").strip() for file in (out, err))
    if code == 0:
        return printed, ""
    return printed, errors.splitlines()[-1].partition(":")[0] if code > 0 and errors else "Killed"

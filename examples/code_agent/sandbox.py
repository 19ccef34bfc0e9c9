"""Runs a program that a model wrote: a Python of its own, without anything of ours, and with little of everything.

It bounds time, memory, files and processes. It is no jail: for programs of a model that could mean harm, call this in a
container or a virtual machine.
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
    """(what it printed, the name of its error: empty where there was none)."""
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
        printed, said = ((file.seek(0), file.read(OUTPUT))[1].decode(errors="replace").strip() for file in (out, err))
    if code == 0:
        return printed, ""
    return printed, said.splitlines()[-1].partition(":")[0] if code > 0 and said else "Killed"

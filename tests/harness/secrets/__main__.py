"""`python -m tests.harness.secrets`: a real run is given eight secrets, uses them and leaves none; exit 0 only if so.

Looked through: the run's folder, its archive, the log on the server, spans, Ray's and the engine's files, what the
commands print, the arguments of every process while it runs; and what starts that are refused print and leave.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.harness.secrets.planted import (
    NATS_PASSWORD,
    S3_SECRET,
    SECRETS,
    Servers,
    found_in,
    found_in_archive,
    found_in_spans,
    found_under,
    servers,
)

LOOK_S = 0.5
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("show",),
    ("show", "--step", "0"),
    ("tail", "--no-follow"),
    ("audit",),
    ("query", "SELECT * FROM runs"),
    ("lineage",),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, look, judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.secrets", description=__doc__)
    parser.add_argument("--steps", type=int, default=2, help="training steps [2]")
    steps = parser.parse_args(argv).steps
    # Ray's sockets lie in its folder, and their paths have 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="se-", dir="/tmp") as folder:
        return _judge(Path(folder), steps)


def _judge(folder: Path, steps: int) -> int:
    left = folder / "left"
    for name in ("ray", "tmp", "runs"):
        (left / name).mkdir(parents=True)
    leaks, broken = [], []
    with servers(folder / "servers") as those:
        os.environ |= those.environment | {"RAY_TMPDIR": str(left / "ray"), "TMPDIR": str(left / "tmp")}
        demo = ("demo", "--steps", str(steps), "--plain", "--run", "s", "--runs-dir", str(left / "runs"))
        code, lines = _run(demo, those.flags, left)
        leaks += lines
        broken += [] if code == 0 else [f"the run ended with exit code {code}"]
        password = {"SLIME_EVENTS_NATS_URL_PASSWORD": NATS_PASSWORD}
        for command, *words in COMMANDS:
            code, lines = _run((command, str(left / "runs" / "s"), *words), (), left, **password)
            leaks += lines
            broken += [] if code == 0 else [f"{command} ended with exit code {code}"]
        code, lines = _run(("doctor", "--quick"), those.flags[:4], left)
        leaks += lines
        leaks += found_in_archive("s") + found_in_spans(those.received)
        broken += [] if those.received and not those.refused else ["no spans came with the token"]
        leaks += _refused(those, left)
    leaks += found_under(left, those.stored)
    files = sum(path.is_file() for path in left.rglob("*"))
    for line in (*broken, *leaks):
        print(line)
    print(f"{len(SECRETS)} secrets, {files} files looked through: {len(leaks)} found, {len(broken)} broken")
    return int(bool(leaks or broken))


def _refused(those: Servers, left: Path) -> list[str]:
    """Return the secrets that are printed by a run with the wrong password, and by one with the wrong key."""
    url = those.flags[1].replace(NATS_PASSWORD, f"not-{NATS_PASSWORD}")
    demo = ("demo", "--steps", "1", "--plain", "--run", "refused", "--runs-dir", str(left / "runs"))
    code, leaks = _run(demo, ("--nats-url", url, *those.flags[2:]), left)
    code_2, more = _run(demo, those.flags, left, AWS_SECRET_ACCESS_KEY=f"not-{S3_SECRET}")
    return [*leaks, *more, *(["a start that was to be refused was not"] if 0 in (code, code_2) else [])]


def _run(words: Sequence[str], flags: Sequence[str], left: Path, **environment: str) -> tuple[int, list[str]]:
    """Run a command; return its exit code, and the secrets in its output and in the arguments of all processes."""
    out = left / "printed"
    with out.open("wb") as file:
        command = [sys.executable, "-m", "slime_events.app.cli.main", *words, *flags]
        process = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | environment)
    leaks: set[str] = set()
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
        for other in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                # Itself shows them for as long as Python takes to start.
                is_starting = other.pid == process.pid and not any("x" * 8 in word for word in other.cmdline())
                if not is_starting:
                    leaks.update(found_in(f"arguments of {other.name()}", " ".join(other.cmdline()).encode()))
    printed = out.read_bytes()
    sys.stdout.write(printed.decode(errors="replace") if process.returncode else "")
    return process.returncode, [*sorted(leaks), *found_in(f"printed by {words[0]}", printed)]


if __name__ == "__main__":
    sys.exit(main())

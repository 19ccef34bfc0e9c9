"""`doctor`: what it finds, what it says to do, and the exit code."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from slime_events.app.cli import checks
from slime_events.app.cli.checks import GIB, MEGATRON_IMPORTS, SGLANG_IMPORTS, Outcome, check_files
from slime_events.app.cli.commands import doctor
from tests.cli.invoke import arguments, command


def test_python_version() -> None:
    assert checks.check_python((3, 11, 9)).outcome is Outcome.OK
    assert checks.check_python((3, 13, 0)).outcome is Outcome.OK
    assert all(checks.check_python(other).mend for other in ((3, 10, 9), (3, 14, 0)))


def test_a_missing_package_says_how_to_get_it() -> None:
    assert checks.check_package("msgspec", "x").outcome is Outcome.OK
    missing = checks.check_package("no-such-distribution", "pip install it")
    assert (missing.outcome, missing.mend) == (Outcome.FAIL, "pip install it")


def test_a_broken_import_shows_its_last_line() -> None:
    broken = checks.check_import("x", "import no_such_module_at_all", "mend", limit=60)
    assert broken.outcome is Outcome.FAIL
    assert "no_such_module_at_all" in broken.detail


def test_an_import_that_never_returns_is_ended() -> None:
    stuck = checks.check_import("x", "import time; time.sleep(60)", "mend", limit=0.3)
    assert "no answer within" in stuck.detail


def test_nats_binary(tmp_path: Path) -> None:
    assert checks.check_nats().outcome is Outcome.OK
    old = tmp_path / "nats-server"
    old.write_text("#!/bin/sh\necho nats-server: v2.9.10\n")
    old.chmod(0o755)
    assert "2.12" in checks.check_nats(str(old)).detail
    assert "does not run" in checks.check_nats(str(tmp_path / "absent")).detail


@pytest.mark.parametrize(
    ("greeting", "outcome"),
    [
        (b'INFO {"version":"2.12.1","jetstream":true}\r\n', Outcome.OK),
        (b'INFO {"version":"2.9.1","jetstream":true}\r\n', Outcome.FAIL),
        (b'INFO {"version":"2.12.1"}\r\n', Outcome.FAIL),
        (b"HTTP/1.1 400 Bad Request\r\n", Outcome.FAIL),
    ],
)
def test_nats_url(greeting: bytes, outcome: Outcome) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(greeting)

        thread = threading.Thread(target=greet)
        thread.start()
        assert checks.check_nats_url(f"nats://127.0.0.1:{server.getsockname()[1]}", limit=60).outcome is outcome
        thread.join(timeout=60)


def test_a_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert checks.check_port(port).outcome is Outcome.FAIL
        assert checks.check_nats_url(f"127.0.0.1:{port}", limit=0.2).outcome is Outcome.FAIL
    assert checks.check_port(0).outcome is Outcome.OK


def test_memory_and_disk(tmp_path: Path) -> None:
    assert checks.check_memory(2 * GIB).outcome is Outcome.FAIL
    assert checks.check_memory(6 * GIB).outcome is Outcome.WARN
    assert checks.check_memory(64 * GIB).outcome is Outcome.OK
    file = tmp_path / "file"
    file.touch()
    assert checks.check_disk(tmp_path / "not" / "yet").outcome is not Outcome.FAIL
    assert checks.check_disk(file / "below").outcome is Outcome.FAIL


def test_object_store(tmp_path: Path) -> None:
    good = checks.check_object_store("blob-url", f"file://{tmp_path}/blobs")
    assert good.outcome is Outcome.OK
    assert list((tmp_path / "blobs").iterdir()) == []
    assert checks.check_object_store("blob-url", "nosuchscheme://bucket/x").outcome is Outcome.FAIL


def test_rows_and_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--quick", "--runs-dir", str(tmp_path)]
    clean = command("doctor")(words)
    rows = capsys.readouterr().out
    failing = [check for check in doctor.diagnose(arguments("doctor", *words)) if check.outcome is Outcome.FAIL]
    assert clean == int(bool(failing))
    for name in ("python", "torch", "megatron-core", "ray", "sglang", "nats-server", "disk", "memory"):
        assert name in rows
    assert command("doctor")([*words, "--blob-url", "nosuchscheme://x"]) == 1
    assert "to fix: " in capsys.readouterr().out


def _distribution(folder: Path, *, length: int) -> None:
    """A distribution `large` of one package, whose file is 5 bytes long, and `length` by its record."""
    (folder / "large").mkdir()
    (folder / "large" / "__init__.py").write_bytes(b"a = 1")
    info = folder / "large-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: large\nVersion: 1.2\n")
    (info / "RECORD").write_text(f"large/__init__.py,,{length}\nlarge-1.2.dist-info/RECORD,,\n")


@pytest.mark.parametrize(
    ("length", "imports", "outcome", "named"),
    [
        (5, ("large",), Outcome.OK, "1.2"),
        (6, ("large",), Outcome.FAIL, "large/__init__.py"),
        (5, ("large", "no_such_package"), Outcome.FAIL, "no_such_package"),
    ],
)
def test_a_package_whose_files_or_imports_are_missing_is_found_without_importing_it(
    length: int, imports: tuple[str, ...], outcome: Outcome, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _distribution(tmp_path, length=length)
    monkeypatch.syspath_prepend(str(tmp_path))
    check = check_files("large", imports, "install it")
    assert (check.outcome, check.mend) == (outcome, "" if outcome is Outcome.OK else "install it")
    assert named in check.detail
    assert "large" not in sys.modules


_LOADED = """
import json, sys
import torch, sglang.srt.entrypoints.engine, megatron.core.models.gpt
print(json.dumps(sorted(name for name in {listed} if name not in sys.modules)))
"""


@pytest.mark.real
def test_the_packages_that_are_looked_for_are_those_that_the_imports_load() -> None:
    """In one process, since they share half a minute's worth of modules on a slow machine."""
    environment = {**os.environ, "PYTHONPATH": str(checks._shims()), "SGLANG_USE_CPU_ENGINE": "1"}
    program = _LOADED.format(listed=(*SGLANG_IMPORTS, *MEGATRON_IMPORTS))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []

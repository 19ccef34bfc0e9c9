"""`doctor`: what it finds, what it says to do, and the exit code."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from slime_events.cli import checks, doctor
from slime_events.cli.checks import GIB, Outcome


def test_python_version() -> None:
    assert checks.check_python((3, 11, 9)).outcome is Outcome.OK
    assert checks.check_python((3, 12, 0)).mend


def test_a_missing_package_says_how_to_get_it() -> None:
    assert checks.check_package("msgspec", "x").outcome is Outcome.OK
    missing = checks.check_package("no-such-distribution", "pip install it")
    assert (missing.outcome, missing.mend) == (Outcome.FAIL, "pip install it")


def test_a_broken_import_shows_its_last_line() -> None:
    broken = checks.check_import("x", "import no_such_module_at_all", "mend", limit=60)
    assert broken.outcome is Outcome.FAIL
    assert "no_such_module_at_all" in broken.found


def test_an_import_that_never_returns_is_ended() -> None:
    stuck = checks.check_import("x", "import time; time.sleep(60)", "mend", limit=0.3)
    assert "no answer within" in stuck.found


def test_nats_binary(tmp_path: Path) -> None:
    assert checks.check_nats().outcome is Outcome.OK
    old = tmp_path / "nats-server"
    old.write_text("#!/bin/sh\necho nats-server: v2.9.10\n")
    old.chmod(0o755)
    assert "2.12" in checks.check_nats(str(old)).found
    assert "does not run" in checks.check_nats(str(tmp_path / "absent")).found


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
    arguments = ["--quick", "--runs-dir", str(tmp_path)]
    clean = doctor.main(arguments)
    rows = capsys.readouterr().out
    failing = [check for check in doctor.diagnose(doctor._options(arguments)) if check.outcome is Outcome.FAIL]
    assert clean == int(bool(failing))
    for name in ("python", "torch", "megatron-core", "ray", "sglang", "nats-server", "disk", "memory"):
        assert name in rows
    assert doctor.main([*arguments, "--blob-url", "nosuchscheme://x"]) == 1
    assert "to mend: " in capsys.readouterr().out

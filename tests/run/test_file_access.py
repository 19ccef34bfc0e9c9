"""Test that a run writes for its user alone: no other user of the machine reads prompts, answers, weights or logs."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from ray._private import services
from ray._private.node import Node

from slime_events.app.launch.cluster import TOKEN_NAMES, token_variables
from slime_events.app.launch.own_ray import ONLOOKERS, make_small
from slime_events.core.run.run_folder import PARTS, RunFolder
from storage.file_access import FileAccess, close_to_others, limited_files, take_access
from tests.cli.invoke import command
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import run_with, tiny


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """That of most machines; whatever a test makes of it is undone."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def readable_by_others(folder: Path, bits: int = 0o077) -> list[str]:
    """Files and folders that others may read or write, by themselves: also where the folder above is closed."""
    paths = [folder, *folder.rglob("*")]
    return [str(path) for path in paths if not path.is_symlink() and mode(path) & bits and not path.is_socket()]


@pytest.mark.parametrize("access", get_args(FileAccess))
def test_what_a_run_writes_is_for_those_that_are_chosen(tmp_path: Path, access: FileAccess) -> None:
    with cheap_parts(Parts()):
        asyncio.run(run_with(tiny(tmp_path, "r", rollout={"num_rollout": 2}, run={"file_access": access})))
    assert os.umask(0o022) == 0o022, "the process is as it was"
    folder = tmp_path / "runs" / "r"
    written = {path.name for path in folder.iterdir()}
    assert {"nats", "logs", "archive", "weights", "settings.toml", "summary.json"} <= written <= {*PARTS, "base"}
    if access == "umask":
        assert mode(folder) == 0o755
        return
    assert mode(folder) == {"owner": 0o700, "group": 0o750}[access]
    assert mode(folder.parent) == mode(folder), "a folder of all runs that a run has made"
    assert not readable_by_others(folder, {"owner": 0o077, "group": 0o027}[access])
    if access == "group":
        assert mode(folder / "settings.toml") == 0o640


def test_a_folder_of_an_older_version_is_closed_as_it_goes_on(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "r", rollout={"num_rollout": 1}, run={"file_access": "umask"})
    with cheap_parts(Parts()):
        asyncio.run(run_with(settings))
    folder = tmp_path / "runs" / "r"
    assert mode(folder) == 0o755
    toml = folder / "settings.toml"
    toml.write_text("\n".join(line for line in toml.read_text().splitlines() if "file_access" not in line))
    assert command("show")([str(folder)]) == 0, "a reader changes nothing"
    assert mode(folder) == 0o755
    with cheap_parts(Parts()):
        words = ["r", "--runs-dir", str(folder.parent), "--num-rollout", "2", "--plain", "--file-access", "owner"]
        assert command("resume")(words) == 0
    assert mode(folder) == 0o700
    assert command("show")([str(folder)]) == 0


def test_a_mode_that_its_owner_has_chosen_stays(tmp_path: Path) -> None:
    for before, access, after in (
        (0o755, "owner", 0o700), (0o755, "group", 0o750), (0o777, "owner", 0o700), (0o755, "umask", 0o755),
        (0o750, "owner", 0o750), (0o2770, "owner", 0o2770), (0o2775, "group", 0o2750), (0o700, "owner", 0o700),
    ):  # fmt: skip
        tmp_path.chmod(before)
        assert close_to_others(tmp_path, access) == (before != after)  # type: ignore[arg-type]
        assert mode(tmp_path) == after


def test_it_holds_in_threads_and_processes_and_ends(tmp_path: Path) -> None:
    def write(name: str) -> None:
        (tmp_path / name).touch()

    with limited_files("owner"):
        thread = threading.Thread(target=write, args=("thread",))
        thread.start()
        thread.join()
        subprocess.run([sys.executable, "-c", f"open({str(tmp_path / 'process')!r}, 'w')"], check=True)
    write("after")
    assert [mode(tmp_path / name) for name in ("thread", "process", "after")] == [0o600, 0o600, 0o644]
    with pytest.raises(KeyError), limited_files("owner"):
        raise KeyError
    write("later")
    take_access("group")
    write("group")
    take_access("umask")
    write("same")
    assert [mode(tmp_path / name) for name in ("later", "group", "same")] == [0o644, 0o640, 0o640]


def test_a_new_folder_is_closed_from_its_first_moment(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "r")
    assert mode(folder.path) == mode(folder.logs) == mode(folder.path.parent) == 0o700
    assert mode(RunFolder.create(tmp_path / "shared", "r", "group").path) == 0o750
    assert mode(RunFolder.create(tmp_path / "open", "r", "umask").path) == 0o755


def test_ray_s_token_lies_in_the_run_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TOKEN_NAMES:
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "ray-token"
    file.write_text("of a launcher that was killed")
    file.chmod(0o644)
    assert token_variables(file) == {"RAY_AUTH_TOKEN_PATH": str(file)}
    assert mode(file) == 0o600
    assert len(file.read_text()) == 64
    before = file.read_text()
    token_variables(file)
    assert file.read_text() == before, "Ray reads it once in a process"
    assert token_variables(None) == {}
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/of/the/user")
    assert token_variables(tmp_path / "other") == {}
    assert not (tmp_path / "other").exists()


def test_ray_s_session_is_closed_to_others_whatever_ray_does_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray makes its folders for all users of the machine, and the session's once more where it spills to."""
    modes: list[int] = []

    def start(node: Any) -> None:
        modes.append(mode(tmp_path))
        tmp_path.chmod(0o777)

    monkeypatch.setattr(services, "resolve_ip_for_localhost", services.resolve_ip_for_localhost)
    command_of = services._build_python_executable_command_memory_profileable
    monkeypatch.setattr(services, "_build_python_executable_command_memory_profileable", command_of)
    for name in ONLOOKERS:
        monkeypatch.setattr(Node, name, getattr(Node, name))
    monkeypatch.setattr(Node, "start_raylet", start)
    make_small()
    tmp_path.chmod(0o777)
    Node.start_raylet(SimpleNamespace(_session_dir=str(tmp_path), _node_id="ab" * 28, _ray_params=SimpleNamespace()))
    assert modes == [0o700]
    assert mode(tmp_path) == 0o700

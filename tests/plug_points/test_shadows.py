"""Files in a user's folder that are called as packages are: none of them shadows a package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime_events.core.run.own_python import ROOT, own_command, own_path

NAMES = (
    *(
        "h2",
        "h11",
        "httptools",
        "wsproto",
        "httpx",
        "uvicorn",
        "uvloop",
        "fastapi",
        "starlette",
        "hypercorn",
        "priority",
    ),
    *("yaml", "msgspec", "numpy", "nats", "ray", "torch", "wandb", "orjson", "zstandard", "aiohttp", "attr", "click"),
    *("random", "typing", "argparse", "statistics", "queue", "secrets", "select", "inspect", "json", "dataclasses"),
)
"""Of packages that ours import, need or only ask for, and of Python itself."""
MAIN = "slime_events.app.cli.main"
WAYS = {
    "python -m": [sys.executable, "-m", MAIN],
    "own_command": own_command(MAIN),
    "the script": [sys.executable, str(Path(sys.executable).with_name("slime-events"))],
}


def shadows(folder: Path) -> Path:
    """A folder with a file of each name, which says so where it is imported."""
    folder.mkdir(exist_ok=True)
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"raise RuntimeError('the file {name}.py of the folder was imported')\n")
    return folder


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own_path({})
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("words", [("--version",), ("show", "nothing"), ("gateway", "nothing"), ("train", "--help")])
def test_a_command_runs_in_a_folder_of_such_files(way: str, words: tuple[str, ...], tmp_path: Path) -> None:
    if way == "the script" and not Path(WAYS[way][1]).exists():
        pytest.skip("the command is not installed")
    done = run([*WAYS[way], *words], shadows(tmp_path / "own"))
    assert "of the folder was imported" not in done.stderr + done.stdout, done.stderr
    assert done.returncode in (0, 2), done.stderr


def test_a_library_s_user_keeps_the_order_of_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import sys; before = list(sys.path); import slime_events; assert before == sys.path"
    )
    for words in (["mine.py"], ["-m", "mine"]):
        done = run([sys.executable, *words], tmp_path)
        assert done.returncode == 0, done.stderr


def test_where_our_packages_are_found_without_the_working_directory() -> None:
    assert own_path({"PYTHONPATH": str(ROOT)}) == {}
    added = own_path({"PYTHONPATH": "/a"}).get("PYTHONPATH")
    assert added in (None, os.pathsep.join(["/a", str(ROOT)])), "none where they are installed"

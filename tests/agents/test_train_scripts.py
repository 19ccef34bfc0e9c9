"""`train.sh` of the examples as it is called: all of it but the run, and one step of teaching the model before it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["search_agent", "code_agent"])
def test_it_makes_what_the_run_is_given(tmp_path: Path, name: str) -> None:
    programs, base = tmp_path / "bin", tmp_path / "out" / "base"
    programs.mkdir()
    base.mkdir(parents=True)
    (base / "config.json").touch()  # it was taught before
    (programs / "python").symlink_to(sys.executable)
    command = programs / "slime-events"
    command.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    command.chmod(0o755)
    script, path = EXAMPLES / name / "train.sh", f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", script, "out", "--num-rollout", "3"],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    assert (words[0], flags["--num-rollout"], flags["--hf-checkpoint"]) == ("train", "3", "out/base")
    assert Path(flags["--config"]).is_file()
    lines = (tmp_path / flags["--prompt-data"]).read_text().splitlines()
    assert lines
    assert all(json.loads(line)["label"] for line in lines)
    program = flags["--agent-command"].split()[1:]
    assert all(Path(file).is_file() for file in program), program


def test_the_model_is_taught_from_where_the_scripts_call_it(tmp_path: Path) -> None:
    script = EXAMPLES / "search_agent" / ".." / "tiny_base.py"
    words = [sys.executable, str(script), str(tmp_path / "base"), "--steps", "1"]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "base" / "model.safetensors").is_file()
    assert (tmp_path / "base" / "tokenizer.json").is_file()

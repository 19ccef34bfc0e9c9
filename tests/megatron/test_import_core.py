"""Test what a trainer's process imports with Megatron, and leaves behind when it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("megatron.core")


def test_a_trainer_that_is_killed_leaves_no_folder_of_wandb(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, actors.megatron.rank\n"
        "assert 'wandb' not in sys.modules, 'it takes seconds to import'\n"
        "import importlib.util\n"
        "print(importlib.util.find_spec('wandb') is not None, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.split() in (["True"], ["False"]), done.stderr
    assert [path.name for path in tmp_path.iterdir() if "wandb" in path.name] == []

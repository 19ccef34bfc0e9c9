"""slime's names where a folder of that name lies on the path: a clone of slime is no package that is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
{first}
from slime_events.plugins.slime.aliases import install_slime_aliases
install_slime_aliases()
from slime.utils.types import Sample
import slime.rollout.filter_hub.base_types
print(Sample.__module__)
"""


def _home_of_sample(folder: Path, first: str) -> str:
    """The module that `slime.utils.types:Sample` comes from. first: a line before slime's names are there."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    program = PROGRAM.format(first=first)
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.parametrize("first", ["", "import slime"])
@pytest.mark.parametrize("inside", ["slime", "slime/slime/utils", "slime/utils"])
def test_a_folder_is_no_package(tmp_path: Path, inside: str, first: str) -> None:
    (tmp_path / inside).mkdir(parents=True)
    (tmp_path / "slime" / "train.py").write_text("")
    assert _home_of_sample(tmp_path, first) == "slime_events.plugins.sample"


@pytest.mark.parametrize("first", ["", "import slime"])
def test_a_package_goes_first(tmp_path: Path, first: str) -> None:
    for name in ("slime", "slime/utils", "slime/rollout", "slime/rollout/filter_hub"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "slime/utils/types.py").write_text("class Sample: ...")
    (tmp_path / "slime/rollout/filter_hub/base_types.py").write_text("")
    assert _home_of_sample(tmp_path, first) == "slime.utils.types"

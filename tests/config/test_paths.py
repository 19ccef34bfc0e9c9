"""Files and folders in the settings that a run cannot read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from slime_events.core.config.paths import missing_paths
from tests import made


def test_a_model_at_a_url_is_refused_with_a_command_that_downloads_it(tmp_path: Path) -> None:
    model = tmp_path / "a store" / "v000005"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    url = f"local://{model}"  # not file://, which is a folder of this host
    settings = made.settings(trainer={"load": f"{url}/"})
    (problem,) = [problem for problem in missing_paths(settings) if problem.startswith("load ")]
    here = tmp_path / "here"
    here.mkdir()
    command = problem[problem.index("python -c") :].replace("python", sys.executable, 1)
    subprocess.run(command, shell=True, check=True, cwd=here)
    assert [str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()] == ["v000005/config.json"]

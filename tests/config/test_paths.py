"""Files and folders in the settings that a run cannot read."""

from __future__ import annotations

from pathlib import Path

from slime_events.core.config.paths import missing_paths
from tests import made


def test_a_model_at_a_url_is_no_missing_path(tmp_path: Path) -> None:
    url = f"local://{tmp_path / 'none'}"  # not file://, which is a folder of this host
    settings = made.settings(trainer={"load": url, "critic_load": url, "opd_teacher_load": url, "ref_load": url})
    flags = {problem.split()[0] for problem in missing_paths(settings)}
    assert not flags & {"load", "critic_load", "opd_teacher_load", "ref_load"}

"""The folder of a run: its settings appear at once."""

from __future__ import annotations

from pathlib import Path

from slime_events.core.run.run_folder import RunFolder


def test_a_reader_of_the_settings_never_sees_a_part_of_them(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "r")
    folder.write_settings("[run]\nrun = 'old'\n")
    with folder.settings.open() as reader:
        folder.write_settings("[run]\nrun = 'new'\n")
        assert reader.read() == "[run]\nrun = 'old'\n"
    assert folder.log_name() == "new"
    assert [path.name for path in folder.path.iterdir() if path.is_file()] == ["settings.toml"]

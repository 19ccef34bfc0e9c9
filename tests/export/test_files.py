"""Test the places of an export's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import StoreUnavailable
from slime_events.analysis.export.files import open_new


def test_a_file_where_a_folder_is_to_be_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StoreUnavailable):
        open_new(str(tmp_path / "taken" / "x.jsonl"))


def test_folders_are_made(tmp_path: Path) -> None:
    with open_new(str(tmp_path / "new" / "x.jsonl")) as file:
        file.write(b"{}\n")
    assert (tmp_path / "new" / "x.jsonl").read_bytes() == b"{}\n"

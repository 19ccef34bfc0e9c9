"""Prompt files that need a package which is not installed say so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from schemas.errors import MissingPart
from slime_events.loop.prompts import data_file
from slime_events.loop.prompts.data_file import DataFile
from slime_events.loop.prompts.parquet_reader import ParquetReader


def test_a_store_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise ImportError("no store")

    monkeypatch.setattr(data_file.fsspec.core, "url_to_fs", missing)
    with pytest.raises(MissingPart):
        DataFile(str(tmp_path / "a.jsonl"))


def test_parquet_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    file = DataFile(str(tmp_path / "a.parquet"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingPart):
        ParquetReader(file)

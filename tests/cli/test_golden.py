"""Every command prints what its golden file says, word by word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.golden import FILES, LINE_COMMANDS, output_of, prepare, surroundings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("golden")
    with surroundings(path):
        prepare(path)
        yield path


@pytest.mark.parametrize("name", LINE_COMMANDS)
def test_the_output_is_that_of_the_golden_file(name: str, folder: Path) -> None:
    golden = (FILES / f"{name}.txt").read_text(encoding="utf-8")
    assert output_of(name, folder) == golden, "python -m tests.cli.golden --write renews it"

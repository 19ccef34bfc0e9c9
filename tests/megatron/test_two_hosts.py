"""Two ranks whose hosts share an S3 server and no disk: weights and checkpoints of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.megatron.two_hosts import CASES
from tests.megatron.two_processes import run_ranks
from tests.storage.seaweed import as_s3

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def results(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each rank reports, by case."""
    folder = tmp_path_factory.mktemp("hosts")
    with as_s3(folder / "s3"):
        out = run_ranks(2, "tests.megatron.two_hosts", tiny, folder / "out")
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_both_continue_from_what_both_have_uploaded(case: str, results: list[dict[str, Any]]) -> None:
    ranks = [result[case] for result in results]
    assert all(rank["same"] for rank in ranks)
    assert len({digest for rank in ranks for digest in rank["digests"]}) == 1
    assert len({digest for rank in ranks for digest in rank["changed"]}) == 1
    assert ranks[0]["files"] == 2, "each rank has uploaded a file of the version"
    assert ranks[0]["deltas"] == 2, "and its own changes"
    assert 0 < ranks[0]["share"] < 0.9
    for rank in ranks:
        assert len([name for name in rank["copies"] if name.startswith("v000001-a")]) >= 1
        assert rank["drafts"] == []

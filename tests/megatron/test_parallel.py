"""Two ranks over gloo, data, tensor or context parallel, train as one process does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from actors.megatron.convert import total_bytes
from actors.megatron.families.registry import read_architecture
from actors.megatron.formats.registry import open_weights
from actors.trainer.ranks import rendezvous_address
from storage.weights.files import open_checkpoint
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify
from tests.megatron.ranks import ALGORITHMS, CASES, MORE, ON_THE_HOST, PARALLEL, run
from tests.megatron.two_processes import RankPair

Ranks = tuple[Path, list[dict[str, Any]]]
"""The folder with what ranks wrote, and each rank's figures."""
Alone = tuple[Path, dict[str, dict[str, Any]]]
"""The folder with what one rank wrote, as `data`, and its figures by case."""


@pytest.fixture(scope="module")
def two_ranks(tiny: Path, rank_pair: RankPair, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    out = tmp_path_factory.mktemp("ranks")
    rank_pair.run("tests.megatron.ranks", tiny, out)
    return out, [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def one_rank(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    out = tmp_path_factory.mktemp("alone")
    return out, {case: run(tiny, out, "data", case, 0, 1, rendezvous_address()) for case in ALGORITHMS}


@pytest.mark.real
@pytest.mark.parametrize(("kind", "case"), CASES)
def test_two_ranks_equal_one(kind: str, case: str, two_ranks: Ranks, one_rank: Alone) -> None:
    compare(kind, case, two_ranks, one_rank)


def compare(kind: str, case: str, two_ranks: Ranks, one_rank: Alone) -> None:
    """Compare a case of two ranks with that of one rank."""
    out, (first, second) = two_ranks
    folder, alone = one_rank[0], one_rank[1][case]
    name, own = f"{kind}-{case}-2", f"data-{case}-1"
    ours, theirs = first[f"{kind}-{case}"], second[f"{kind}-{case}"]
    assert ours == theirs
    for figure in ("loss", "grad_norm", "difference", "critic"):
        assert ours[figure] == pytest.approx(alone[figure], abs=1e-6, rel=2e-6), figure
    assert ours["resumed"] == ours["digests"][-1]
    weights, expected = load_file(out / f"{name}.safetensors"), load_file(folder / f"{own}.safetensors")
    assert weights.keys() == expected.keys()
    for tensor in weights:
        torch.testing.assert_close(weights[tensor], expected[tensor], atol=2e-4, rtol=0)  # Adam makes much of rounding
    _check_dumps(*(torch.load(f"{path}.pt", weights_only=True) for path in (out / name, folder / own)))


@pytest.mark.real
@pytest.mark.parametrize(("kind", "most"), [("data", 1.0), ("tensor", 0.6), ("pipeline", 0.6)])
def test_each_rank_reads_its_share_of_the_weights(kind: str, most: float, two_ranks: Ranks, tiny: Path) -> None:
    whole = total_bytes(open_weights(tiny, read_architecture(tiny)))
    taken = [int((two_ranks[0] / f"{kind}-grpo-{rank}.bytes_read").read_text()) for rank in range(2)]
    assert max(taken) <= most * whole
    assert sum(taken) >= whole


@pytest.mark.real
@pytest.mark.parametrize("kind", PARALLEL)
def test_each_rank_writes_its_share_of_the_weights(kind: str, two_ranks: Ranks) -> None:
    out, (first, second) = two_ranks
    shares = first[f"{kind}-grpo"]["shares"]
    assert shares == second[f"{kind}-grpo"]["shares"]
    of_rank = [sum(file.startswith(f"rank0000{rank}-") for file in shares["files"]) for rank in range(2)]
    assert min(of_rank) > 1, "both ranks wrote, and more than a file"
    folder = WeightStore(str(out / f"{kind}-weights")).folder(1)
    manifest = verify(folder, shares["digest"])
    assert manifest.digest == shares["whole"]
    assert len({tensor.file for tensor in manifest.tensors.values()}) == len(shares["files"])
    assert shares["apart"] == 0.0
    whole, tensors = load_file(out / f"{kind}-grpo-2.safetensors"), open_checkpoint(folder)
    assert {name: bytes(tensor.data) for name, tensor in tensors.items()} == {
        name: tensor.numpy().tobytes() for name, tensor in whole.items()
    }


@pytest.mark.real
def test_weights_that_are_exchanged_give_the_bits_of_separate_models(two_ranks: Ranks) -> None:
    for rank in two_ranks[1]:
        assert rank[f"tensor-{ON_THE_HOST}"] == rank["tensor-exchange"]


@pytest.mark.soak
def test_weights_of_all_kinds_of_ranks_are_exchanged(
    tiny: Path, rank_pair: RankPair, one_rank: Alone, tmp_path: Path
) -> None:
    rank_pair.run("tests.megatron.ranks_more", tiny, tmp_path)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for kind, case in MORE:
        compare(kind, case, (tmp_path, ranks), one_rank)
        for rank in ranks:
            assert rank[f"{kind}-{ON_THE_HOST}"] == rank[f"{kind}-exchange"]


def _check_dumps(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compare the gathered dumps of two ranks with the dump of one."""
    places = [place for shard in ours["dp_shards"] for place in shard["partition"]]
    assert sorted(places) == theirs["dp_shards"][0]["partition"]
    for mine, other in zip(ours["samples"], theirs["samples"], strict=True):
        assert mine.keys() == other.keys()
        for name in ("tokens", "log_probs", "ref_log_probs", "advantages", "values", "returns"):
            if name in mine:
                torch.testing.assert_close(mine[name], other[name], atol=1e-4, rtol=1e-4)

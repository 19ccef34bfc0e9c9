"""An optimizer's state that data parallel ranks share: the same training, checkpoints for any number of ranks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from actors.megatron.optimizer import shards_state
from actors.megatron.sharded_state import boxes
from actors.trainer.ranks import rendezvous_address
from schemas.errors import InvalidValue
from slime_events.core.config.trainer import TrainerSettings
from tests.megatron.sharded import CASES, SHARED, run
from tests.megatron.tiny import make_batch
from tests.megatron.two_processes import RankPair

Found = dict[str, Any]


@pytest.fixture(scope="module")
def trained(
    tiny: Path, rank_pair: RankPair, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Found, list[Found]]:
    """The folder of checkpoints, what one rank found, and what each of two ranks found after it."""
    out = tmp_path_factory.mktemp("sharded")
    alone = {
        f"{case}-{kind}": run(tiny, out, case, kind, 0, 1, rendezvous_address())
        for case, kind in itertools.product(CASES, SHARED)
        if "parallel" not in " ".join(CASES[case])
    }
    rank_pair.run("tests.megatron.sharded", tiny, out)
    return out, json.loads(json.dumps(alone)), [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.real
@pytest.mark.parametrize("case", [case for case, settings in CASES.items() if not settings["clip_grad"]])
def test_a_shared_state_trains_the_same_bits(case: str, trained: tuple[Path, Found, list[Found]]) -> None:
    _, alone, (results, _) = trained
    for result in (results, alone) if f"{case}-whole" in alone else (results,):
        for point in ("at", "end", "followed"):
            assert result[f"{case}-shared"][point] == result[f"{case}-whole"][point], point
        assert len(set(map(tuple, (result[f"{case}-shared"][point] for point in ("at", "end", "followed"))))) == 3


@pytest.mark.real
def test_where_gradients_are_clipped_only_the_norms_rounding_differs(
    trained: tuple[Path, Found, list[Found]],
) -> None:
    out, _, (results, _) = trained
    norms = [results[f"clipped-{kind}"]["norms"] for kind in SHARED]
    assert min(norms[0]) > CASES["clipped"]["clip_grad"]
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    whole, shared = (load_file(out / f"clipped-{kind}-2.safetensors") for kind in SHARED)
    for name, tensor in whole.items():
        torch.testing.assert_close(shared[name], tensor, atol=1e-6, rtol=1e-6)


@pytest.mark.real
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_is_loaded_by_any_number_of_ranks(case: str, trained: tuple[Path, Found, list[Found]]) -> None:
    """Load with the state shared or not, on the side that saved and on the side that loads; bit for bit if the number
    of ranks is the same.
    """
    _, alone, (results, _) = trained
    names = [f"{case}-{kind}" for kind in SHARED]
    loaded = {name for name in results[names[-1]] if name.startswith(case)}
    assert len(loaded) == (4 if names[0] in alone else 2)
    for name in names:
        for checkpoint in loaded & results[name].keys():
            saver, world = checkpoint.rsplit("-", 1)
            saved = {"1": alone, "2": results}[world][saver]
            at, end = results[name][checkpoint]
            assert at == saved["at"], checkpoint
            if world == "2" and (saver == name or not CASES[case]["clip_grad"]):
                assert end == saved["end"], checkpoint


@pytest.mark.real
def test_one_rank_goes_on_from_a_checkpoint_of_two(
    trained: tuple[Path, Found, list[Found]], tiny: Path, trainer: Callable[..., Any]
) -> None:
    out, _, (results, _) = trained
    for case, kind in itertools.product(("float32", "bfloat16", "tensor"), SHARED):
        settings = {name: value for name, value in CASES[case].items() if "parallel" not in name}
        with trainer(tiny, megatron={"use_distributed_optimizer": not SHARED[kind]}, **settings) as rank:
            rank.load_checkpoint(out / f"{case}-{kind}-2")
            assert rank.optimizer_digest() == results[f"{case}-{kind}"]["at"][1]
            assert rank.train(make_batch(2, zero=True)).metrics["grad_norm"] == pytest.approx(
                results[f"{case}-{kind}"]["norms"][2], rel=2e-2 if "bf16" in settings else 1e-5
            )


@pytest.mark.real
def test_each_of_two_ranks_holds_and_writes_its_half(trained: tuple[Path, Found, list[Found]]) -> None:
    out, alone, both = trained
    for case in ("float32", "bfloat16"):
        whole, shared = (alone[f"{case}-{kind}"]["state"] for kind in SHARED)
        assert whole == shared
        for results in both:
            assert results[f"{case}-whole"]["state"] == whole
            assert results[f"{case}-shared"]["state"] == pytest.approx(whole / 2, rel=0.05)
        for kind in SHARED:
            (shard,) = (out / f"{case}-{kind}-1").glob("*.distcp")
            sizes = [path.stat().st_size for path in (out / f"{case}-{kind}-2").glob("*.distcp")]
            assert sizes == pytest.approx([shard.stat().st_size / 2] * 2, rel=0.2), (case, kind)


@pytest.mark.real
@pytest.mark.parametrize("case", CASES)
def test_of_several_ranks_each_has_to_have_written(case: str, trained: tuple[Path, Found, list[Found]]) -> None:
    """In the background here; `test_a_checkpoint_is_loaded_by_any_number_of_ranks` says what is in it."""
    out, _, both = trained
    for results in both:
        assert results[f"{case}-shared"]["saved"] == "saved"
        assert results[f"{case}-shared"]["failed"] == "failed rank 1: OSError: [Errno 28] full False"
    assert list(out.glob("*failed*")) == []


@pytest.mark.parametrize("shape", [(7,), (5, 4), (1, 6), (3, 4, 5), (1, 3, 4)])
def test_blocks_cover_a_range_once_and_in_order(shape: tuple[int, ...]) -> None:
    numbers = np.arange(np.prod(shape)).reshape(shape)
    for start, stop in itertools.combinations(range(numbers.size + 1), 2):
        blocks = [numbers[tuple(map(slice, at, np.add(at, size)))] for at, size in boxes(shape, start, stop)]
        assert all(block.shape == size for block, (_, size) in zip(blocks, boxes(shape, start, stop), strict=True))
        assert np.concatenate([block.ravel() for block in blocks]).tolist() == list(range(start, stop))
        assert len(blocks) <= 2 * len(shape) - 1


@pytest.mark.parametrize(
    ("is_shared", "optimizer", "offloaded", "cpu", "shared"),
    [
        (None, "adam", False, True, False),
        (None, "adam", False, False, True),
        (None, "sgd", False, False, False),
        (None, "adam", True, False, False),
        (True, "adam", False, True, True),
        (True, "adam", False, False, True),
        (False, "adam", False, False, False),
    ],
)
def test_the_state_is_shared_on_cuda_and_where_it_is_asked_for(
    is_shared: bool | None, optimizer: str, offloaded: bool, cpu: bool, shared: bool
) -> None:
    settings = TrainerSettings(optimizer=optimizer)
    assert shards_state(settings, is_shared, offloaded=offloaded, cpu=cpu) is shared


@pytest.mark.parametrize(("optimizer", "offloaded"), [("sgd", False), ("adam", True)])
def test_what_has_no_shared_state_is_refused(optimizer: str, offloaded: bool) -> None:
    with pytest.raises(InvalidValue):
        shards_state(TrainerSettings(optimizer=optimizer), True, offloaded=offloaded, cpu=True)

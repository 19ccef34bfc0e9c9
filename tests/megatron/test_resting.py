"""A rank gives its memory back between two steps: the same bits afterwards, and pages that are really free."""

from __future__ import annotations

import gc
import json
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.megatron.resting import gradient_buffers, kept_tensors
from schemas.errors import TrainerError
from slime_events.core.machine import resting_memory
from slime_events.core.training.save_progress import SaveState
from storage.weights.stored_version import digest_of
from tests.megatron.resting_ranks import CASES
from tests.megatron.tiny import make_batch, make_model
from tests.megatron.two_processes import RankPair

Trainer = Callable[..., Any]
SHARED = {"use_distributed_optimizer": True}
KINDS = [
    pytest.param("qwen3", {}, {}, id="adam"),
    pytest.param("qwen3", {}, {"optimizer": "sgd", "bf16": True}, id="sgd, bfloat16"),
    pytest.param("qwen3", {}, {"bf16": True, "megatron": SHARED}, id="distributed optimizer"),
    pytest.param("qwen3_moe", {"use_kl_loss": True, "kl_loss_coef": 0.1}, {}, id="experts and a reference"),
    pytest.param("qwen3", {"advantage_estimator": "ppo", "kl_coef": 0.1}, {}, id="critic"),
]


def steps(rank: Any, pause: Callable[[Any], None]) -> list[Any]:
    results = []
    for step in range(3):
        result = rank.train(make_batch(step))
        pause(rank)
        results.append((digest_of(rank.export_bytes()), result.optimizer_digest, result.critic_digest))
    return results


def rest_and_wake(rank: Any) -> None:
    rank.rest()
    rank.rest()
    rank.wake()
    rank.wake()


@pytest.mark.parametrize(("family", "algorithm", "settings"), KINDS)
def test_steps_are_the_same_with_a_rest_after_each(
    family: str, algorithm: dict[str, Any], settings: dict[str, Any], tmp_path: Path, trainer: Trainer
) -> None:
    make_model(tmp_path, family, tied=False, hidden_size=64)  # tensors of whole pages
    with trainer(tmp_path, algorithm, **settings) as rank:
        expected = steps(rank, lambda _: None)
    with trainer(tmp_path, algorithm, **settings) as rank:
        assert steps(rank, rest_and_wake) == expected
    assert len({step[:2] for step in expected}) == 3


def test_whatever_is_large_rests(tmp_path: Path, trainer: Trainer) -> None:
    """Compare the tensors with all that the garbage collector knows, and look into their pages."""
    make_model(tmp_path, hidden_size=256, intermediate_size=512, tied=False)
    with trainer(tmp_path, {"advantage_estimator": "ppo", "kl_coef": 0.1}, bf16=True) as rank:
        rank.train(make_batch())
        tensors = [*kept_tensors(rank.trainee), *gradient_buffers(rank.trainee)]
        resting = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        pages = [tensor.untyped_storage() for tensor in tensors if tensor.nbytes > 1 << 18]
        parameters = sum(parameter.numel() for parameter in rank.trainee.model.parameters())
        size = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        # policy and critic: 2 for bfloat16 weights, 4 for gradients, 12 for the optimizer; the reference: 2
        assert sum(size.values()) == pytest.approx(parameters * (2 * 18 + 2), rel=0.1)
        rank.rest()
        assert all(not bytes(view(storage)).strip(b"\0") for storage in pages)
        others = [storage.nbytes() for storage in living() if storage.data_ptr() not in resting]
        assert sum(others) < 0.02 * sum(size.values())


def view(storage: torch.UntypedStorage) -> memoryview:
    """Return the whole pages of a storage."""
    flat = torch.empty(0, dtype=torch.uint8).set_(storage)
    page = mmap.PAGESIZE
    return flat[-storage.data_ptr() % page :][: (storage.nbytes() // page - 1) * page].numpy().data


def living() -> list[torch.UntypedStorage]:
    gc.collect()
    storages = [thing.untyped_storage() for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]
    return list({storage.data_ptr(): storage for storage in storages}.values())


def test_a_resting_rank_refuses_work(tiny: Path, trainer: Trainer, tmp_path: Path) -> None:
    with trainer(tiny) as rank:
        rank.train(make_batch(0))
        rank.begin_checkpoint(tmp_path / "saved")
        rank.rest()
        for call in (lambda: rank.train(make_batch(1)), rank.export_bytes, rank.optimizer_digest, rank.reset):
            with pytest.raises(TrainerError, match="rests"):
                call()
        assert rank.finish_checkpoint(wait=True).state is SaveState.SAVED
        rank.wake()
        expected = rank.train(make_batch(1)).optimizer_digest
        rank.load_checkpoint(tmp_path / "saved")
        assert rank.train(make_batch(1)).optimizer_digest == expected


def test_a_rank_that_has_no_room_for_copies_stays_awake(
    tiny: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trainer(tiny) as rank:
        before = rank.optimizer_digest()
        with monkeypatch.context() as patched:
            patched.setattr(resting_memory, "DISK", "/proc")
            with pytest.raises(TrainerError, match="cannot rest"):
                rank.rest()
        assert rank.optimizer_digest() == before


@pytest.mark.real
def test_two_ranks_rest(tiny: Path, rank_pair: RankPair, tmp_path: Path) -> None:
    rank_pair.run("tests.megatron.resting_ranks", tiny, tmp_path)
    for rank in range(2):
        results = json.loads((tmp_path / f"resting{rank}.json").read_text())
        for case in CASES:
            assert results[f"{case}, resting"] == results[case]

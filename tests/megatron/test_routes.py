"""Routing replay: all updates of a step use the experts that the routers chose before the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from actors.megatron.families.registry import read_architecture
from actors.megatron.layout import check_routing
from actors.megatron.rank import TrainerRank
from actors.megatron.routes import Choices, Routes
from actors.step.policy import REFERENCE
from schemas.arrays import pack, pack_tokens, unpack
from schemas.errors import ImpossibleCombination, StorageError, TrainerError
from schemas.rollouts import RoutedExperts
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.tokens.trajectory import Trajectory
from slime_events.core.training.train_batch import StoredVersion, TrainBatch
from slime_events.loop.training.past_versions import OLD_ACTOR
from slime_events.loop.training.pending_batches import engine_experts
from storage.weights.stored_version import digest_of
from tests.megatron.gradients import gradients_of, plain_gradients
from tests.megatron.pipeline_ranks import PIPELINE, VIRTUAL
from tests.megatron.routing_ranks import chosen_batch
from tests.megatron.tiny import make_batch, make_model

Trainer = Callable[..., Any]


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    make_model(folder, "qwen3_moe", tied=False)
    return folder


def choices_of(rank: TrainerRank, batch: TrainBatch) -> dict[str, Choices]:
    """Return the experts that the routers choose now for each sample."""
    routes = Routes(rank.trainee.architecture.experts, rank.trainee.architecture.num_layers)  # not of engines
    rank.trainee.scores_of(rank.trainee.model, batch.samples, range(len(batch.samples)), 1.0, routing=routes.recording)
    return dict(routes._choices)


@pytest.fixture
def trained_choices(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The experts of each layer and token in passes with a gradient, [tokens, experts] booleans each."""
    seen: list[Tensor] = []
    routing = TopKRouter.routing

    def noted(router: TopKRouter, logits: Tensor, *args: Any, **kwargs: Any) -> Any:
        weights, chosen = routing(router, logits, *args, **kwargs)
        if torch.is_grad_enabled():
            seen.append(chosen)
        return weights, chosen

    monkeypatch.setattr(TopKRouter, "routing", noted)
    return seen


def test_replay_with_the_same_weights_changes_no_bit(experts: Path, trainer: Trainer) -> None:
    batch, outcomes = make_batch(), []
    for replays in (False, True):
        with trainer(experts, use_routing_replay=replays, lr=0.0, global_batch_size=8, clip_grad=0.0) as rank:
            rank.train(batch)
            assert bool(rank.trainee.routes) is replays
            outcomes.append((gradients_of(rank), rank.weights_digest()))
            if replays:
                assert len(rank.trainee.routes._choices) == len(batch.samples)
    (without, digest), (again, digest_again) = outcomes
    assert digest == digest_again
    for name, gradient in without.items():
        assert torch.equal(again[name], gradient), name


def test_later_updates_use_the_experts_of_the_first(
    experts: Path, trainer: Trainer, trained_choices: list[Tensor]
) -> None:
    batch = make_batch()
    changes: dict[str, Any] = {"lr": 0.5, "global_batch_size": 8, "micro_batch_size": 8}
    recorded = []
    before: dict[str, Choices] = {}
    after: dict[str, Choices] = {}
    for replays in (False, True):
        trained_choices.clear()
        with trainer(experts, use_routing_replay=replays, use_dynamic_batch_size=False, **changes) as rank:
            if replays:
                before = choices_of(rank, batch)
            rank.train(batch)
            if replays:
                after = choices_of(rank, batch)
            recorded.append(sorted(_counts(trained_choices)))
    assert any((before[name] != after[name]).any() for name in before), "the update must move the choices"
    expected = [layer for choices in before.values() for layer in np.sort(choices, -1).transpose(1, 0, 2)]
    every = sorted(tuple(map(int, token)) for layer in expected for token in layer)
    assert recorded[1] == sorted(every)
    assert recorded[0] != recorded[1]


def _counts(maps: list[Tensor]) -> list[tuple[int, ...]]:
    """Return the experts of each token, in ascending order."""
    return [tuple(map(int, row.nonzero()[:, 0])) for experts in maps for row in experts]


def test_gradients_equal_those_of_transformers_with_the_same_experts(
    experts: Path, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record under one model, train another, as a later update does."""
    batch = make_batch()
    later = make_model(tmp_path, "qwen3_moe", tied=False, seed=1)
    with trainer(experts, use_routing_replay=True, clip_grad=0.0) as rank:
        rank.trainee.score(batch.samples, range(len(batch.samples)), 1.0)
        choices = dict(rank.trainee.routes._choices)
        rank.load_weights(tmp_path)
        own = choices_of(rank, batch)
        assert any((own[name] != choices[name]).any() for name in own)
        monkeypatch.setattr(Routes, "forget", lambda routes: None)
        rank.train(batch)
        ours = gradients_of(rank)
    check_gradients(ours, later, batch, choices, monkeypatch)


def check_gradients(
    ours: dict[str, Tensor],
    model: Any,
    batch: TrainBatch,
    choices: dict[str, Choices],
    monkeypatch: pytest.MonkeyPatch,
    further: Callable[[], Tensor] = lambda: torch.zeros(()),
) -> None:
    """Compare with the gradients of a transformers model that routes each token to these experts.

    further: see `plain_gradients`.
    """
    for layer, block in enumerate(model.model.layers):
        of_samples = iter(
            [torch.from_numpy(choices[sample.sample][:, layer].astype(np.int64)) for sample in batch.samples]
        )
        monkeypatch.setattr(block.mlp.gate, "forward", partial(_routed, block.mlp.gate, of_samples))
    for name, gradient in plain_gradients(model, batch, further).items():
        torch.testing.assert_close(
            ours[name], gradient, atol=1e-6, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


def _routed(router: Any, of_samples: Iterator[Tensor], hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Route the tokens of the next sample to given experts, as transformers' router does."""
    logits = torch.nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]), router.weight)
    indices = next(of_samples)
    scores = logits.softmax(-1).gather(1, indices)
    return logits, scores / scores.sum(-1, keepdim=True), indices


ROLLOUT = {"use_rollout_routing_replay": True, "clip_grad": 0.0}


def test_gradients_with_the_engines_experts_equal_those_of_transformers(
    experts: Path, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sample has no experts of the engine, and the second those of two tokens: these have a router's."""
    batch, model = chosen_batch(experts), make_model(tmp_path, "qwen3_moe", tied=False)
    with trainer(experts, **ROLLOUT) as rank:
        choices = choices_of(rank, batch)
        for sample in batch.samples:
            if sample.experts is not None:
                choices[sample.sample][: len(sample.experts)] = sample.experts
        metrics = rank.train(batch).metrics
        ours = gradients_of(rank)
    check_gradients(ours, model, batch, choices, monkeypatch)
    routed = sum(sample.total_length - 1 for sample in batch.samples[2:]) + 2
    assert metrics["engine_routed_share"] == routed / sum(sample.total_length - 1 for sample in batch.samples)


def test_old_log_probs_and_all_updates_use_the_engines_experts(
    experts: Path, trainer: Trainer, trained_choices: list[Tensor]
) -> None:
    batch = chosen_batch(experts)
    with trainer(experts, **ROLLOUT, lr=0.5, global_batch_size=8, use_dynamic_batch_size=False) as rank:
        rank.train(batch)
        recorded = rank.trainee.routes._choices
        for sample in batch.samples:
            if sample.experts is not None:
                assert (recorded[sample.sample][: len(sample.experts)] == sample.experts).all()
    expected = [layer for choices in recorded.values() for layer in np.sort(choices, -1).transpose(1, 0, 2)]
    assert sorted(_counts(trained_choices)) == sorted(tuple(map(int, token)) for layer in expected for token in layer)


def test_the_old_actor_uses_the_engines_experts_and_a_reference_chooses(experts: Path, trainer: Trainer) -> None:
    batch, every = chosen_batch(experts), range(16)
    algorithm = {"keep_old_actor": True, "use_kl_loss": True}
    with trainer(experts, algorithm, ref_load=str(experts), **ROLLOUT) as rank:
        trainee = rank.trainee
        routed, own = (
            trainee.scores_of(trainee.model, batch.samples, every, 1.0, routing=routing)
            for routing in (trainee.routes.scoring, None)
        )
        trainee.frozen_model(OLD_ACTOR).become(StoredVersion(1, str(experts), digest_of(rank.export_bytes())))
        for name, expected in {OLD_ACTOR: routed, REFERENCE: own}.items():
            scores = trainee.frozen_model(name).score(batch.samples, every, 1.0)
            assert all(torch.equal(scores[index], expected[index]) for index in every), name
    assert [index for index in every if torch.equal(routed[index], own[index])] == [0]  # without the engine's experts


def test_a_token_that_passed_no_router_of_the_engine_has_no_experts(experts: Path, trainer: Trainer) -> None:
    """SGLang reports zeros for it, but a router chooses two different experts, and never one twice."""
    batch = chosen_batch(experts)
    sample = batch.samples[2]
    assert sample.experts is not None
    sample.experts[1, 1] = 0
    sample.experts[2, 0] = 3
    with trainer(experts, **ROLLOUT) as rank:
        own = choices_of(rank, batch)[sample.sample]
        routes = rank.trainee.routes
        rank.trainee.scores_of(rank.trainee.model, batch.samples, range(16), 1.0, routing=routes.recording)
        mixed = routes._choices[sample.sample]
        assert (mixed[0] == sample.experts[0]).all()
        assert (mixed[1, 0] == own[1, 0]).all() or (mixed[1, 0] != sample.experts[1, 0]).any()
        assert mixed[1, 1].any()
        assert mixed[2, 0, 0] != mixed[2, 0, 1]
        assert routes.engine_share([sample]) == pytest.approx(1 - 2 / (sample.total_length - 1))


@pytest.mark.parametrize("wrong", ["another model", "too many experts", "too many tokens"])
def test_experts_of_another_model_are_refused(wrong: str, experts: Path, trainer: Trainer) -> None:
    batch = chosen_batch(experts)
    sample = batch.samples[2]
    assert sample.experts is not None
    other = {
        "another model": sample.experts[:, :1],
        "too many experts": sample.experts + np.uint8(4),
        "too many tokens": np.repeat(sample.experts, 3, 0),
    }[wrong]
    samples = (*batch.samples[:2], replace(sample, experts=other), *batch.samples[3:])
    with trainer(experts, **ROLLOUT) as rank, pytest.raises(TrainerError, match=sample.sample):
        rank.train(replace(batch, samples=samples))


def test_the_log_gives_the_batch_its_experts() -> None:
    ids = np.arange(12, dtype=np.uint16)
    trajectory = Trajectory("g-s0", pack_tokens([1, 2]), experts=RoutedExperts(pack(ids, "uint16"), 3, 2))
    read = engine_experts(trajectory, unpack)
    assert read is not None
    assert (read == ids.reshape(2, 3, 2)).all()
    trajectory.experts = RoutedExperts(pack(ids, "uint16"), 5, 2)
    with pytest.raises(StorageError, match="g-s0"):
        engine_experts(trajectory, unpack)


def test_a_step_records_whatever_its_old_log_probs_are_of(experts: Path, trainer: Trainer) -> None:
    """The engine's log-probs need no pass before the update, so there is one to record the experts."""
    for algorithm in ({"use_rollout_logprobs": True}, {"kl_coef": 0.1}, {"loss_type": "sft_loss"}):
        with trainer(experts, algorithm, use_routing_replay=True, global_batch_size=8, ref_load=str(experts)) as rank:
            batch = make_batch()
            expected = choices_of(rank, batch)
            rank.train(batch)
            recorded = rank.trainee.routes._choices
            assert recorded.keys() == expected.keys()
            assert all((recorded[name] == expected[name]).all() for name in expected)


ONE_LAYER = {"megatron": {"num_layers_per_virtual_pipeline_stage": 1}}


@pytest.mark.parametrize(
    ("family", "change", "reason"),
    [
        ("qwen3", {}, "no experts"),
        ("qwen3_moe", {"megatron": {"moe_router_fusion": True}}, "moe-router-fusion"),
        ("qwen3_moe", PIPELINE | {"megatron": VIRTUAL}, "there are 2: leave out --num-virtual-stages"),
        ("qwen3_moe", PIPELINE | ONE_LAYER, "there are 3: leave out --num-layers-per-virtual"),
    ],
)
@pytest.mark.parametrize("flag", ["use_routing_replay", "use_rollout_routing_replay"])
def test_replay_that_cannot_be_is_refused(
    flag: str, family: str, change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    make_model(tmp_path, family, num_hidden_layers=6)
    with pytest.raises(ImpossibleCombination, match=f"{flag.replace('_', '-')}.*{reason}"):
        check_routing(TrainerSettings(**{flag: True}, **change), read_architecture(tmp_path))


def test_a_pipeline_does_not_compute_experts_alone_again(experts: Path) -> None:
    flags = {"moe_router_bias_update_rate": 0.001, "recompute_granularity": "selective", "recompute_modules": ["moe"]}
    check_routing(TrainerSettings(megatron=flags), read_architecture(experts))
    with pytest.raises(ImpossibleCombination, match="recompute-modules moe"):
        check_routing(TrainerSettings(megatron=flags, pipeline_model_parallel_size=2), read_architecture(experts))

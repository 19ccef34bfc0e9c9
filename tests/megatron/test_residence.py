"""Models that are not trained, with their weights on the host between passes as on a GPU: the same bits, one model."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core.models.gpt import GPTModel
from torch import Tensor

from actors.megatron import rank as rank_module
from actors.megatron import residence
from actors.megatron.residence import OwnModel, VisitingModel
from actors.megatron.trainee import Trainee
from actors.megatron.weight_share import model_digest
from actors.step.policy import REFERENCE, TEACHER
from schemas.errors import CheckpointMismatch
from slime_events.core.training.train_batch import StoredVersion, TrainBatch
from slime_events.loop.training.past_versions import OLD_ACTOR
from slime_events.plugins.trainer_points import BEFORE_LOG_PROB, PlugPoint
from storage.weights.stored_version import digest_of
from tests.megatron.test_past_versions import made_by, other_weights
from tests.megatron.tiny import make_batch, make_model

Trainer = Callable[..., Any]
TAUGHT = {"use_opd": True, "opd_type": "megatron", "opd_kl_coef": 0.3}
KL = {"use_kl_loss": True, "kl_loss_coef": 0.1}


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Whether ranks that are built afterwards let frozen models wait on the host."""
    return lambda on: monkeypatch.setattr(rank_module, "waits_on_host", lambda: on)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Other weights of the policy's architecture, and a model of another one."""
    paths = {name: tmp_path_factory.mktemp(name) for name in ("alike", "other")}
    make_model(paths["alike"], seed=7)
    make_model(paths["other"], "llama", tied=False, seed=3, hidden_size=48, num_hidden_layers=3)
    return paths


def bits(rank: Any) -> list[Tensor]:
    """Return the policy's parameters and the optimizer's copies of them."""
    parameters = [parameter.detach().clone() for parameter in rank.trainee.model.parameters()]
    inner = rank.trainee.optimizer.optimizer
    return parameters + [parameter.detach().clone() for group in inner.param_groups for parameter in group["params"]]


def same(mine: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(tensor, other) for tensor, other in zip(mine, theirs, strict=True))


def models() -> int:
    gc.collect()
    return sum(isinstance(thing, GPTModel) for thing in gc.get_objects())


def two_steps(rank: Any, folders: dict[str, Path], dumps: Path) -> list[Any]:
    """A step with the reference that was loaded; one with references and old actors that are versions."""
    later = other_weights(rank, folders["alike"])
    rank.load_weights(rank._settings.hf_checkpoint)
    first = rank.train(make_batch(0), f"{dumps}/0.pt")
    batch = made_by(dataclasses.replace(make_batch(2), temperature=0.7), 2)
    if OLD_ACTOR in rank.trainee.frozen:
        batch = dataclasses.replace(batch, old=(later,))
    if rank._algorithm.ref_update_interval:
        batch = dataclasses.replace(batch, reference=later)
    second = rank.train(batch, f"{dumps}/2.pt")
    columns = [torch.load(f"{dumps}/{step}.pt", weights_only=True)["samples"] for step in (0, 2)]
    scored = [
        {name: value.tolist() for name, value in sample.items() if name.endswith("log_probs")}
        for samples in columns
        for sample in samples
    ]
    digests = [(result.models, result.optimizer_digest) for result in (first, second)]
    return [digests, digest_of(rank.export_bytes()), scored]


CASES = [
    pytest.param(KL | {"ref_update_interval": 2, "keep_old_actor": True}, None, 1, {}, id="reference and old actor"),
    pytest.param({"kl_coef": 0.1} | TAUGHT, "other", 2, {}, id="teacher of another architecture"),
    pytest.param(KL | TAUGHT, "alike", 1, {"bf16": True}, id="teacher of the same, bfloat16"),
]


@pytest.mark.parametrize(("algorithm", "teacher", "held", "settings"), CASES)
def test_scores_and_weights_are_those_with_separate_models(
    algorithm: dict[str, Any],
    teacher: str | None,
    held: int,
    settings: dict[str, Any],
    folders: dict[str, Path],
    tiny: Path,
    tmp_path: Path,
    trainer: Trainer,
    on_host: Callable[[bool], None],
) -> None:
    """Bit by bit; and without a second model, but for another architecture."""
    load = {"opd_teacher_load": str(folders[teacher])} if teacher else {}
    outcomes = []
    for on in (False, True):
        on_host(on)
        (tmp_path / str(on)).mkdir()
        before = models()
        with trainer(tiny, algorithm, num_steps_per_rollout=2, lr=1e-2, **settings, **load) as rank:
            count = models() - before
            outcomes.append(two_steps(rank, folders, tmp_path / str(on)))
            assert models() - before == count == (held if on else 1 + len(rank.trainee.frozen))
            del rank
    assert outcomes[0] == outcomes[1]
    names = {name for sample in outcomes[1][2] for name in sample}
    assert "ref_log_probs" in names
    assert ("teacher_log_probs" in names) is (teacher is not None)


def test_only_what_is_asked_is_on_the_device(
    folders: dict[str, Path], tiny: Path, trainer: Trainer, on_host: Callable[[bool], None]
) -> None:
    """The parameters' own memory stays; the values in it change, and change back."""
    on_host(True)
    load = {"opd_teacher_load": str(folders["other"]), "ref_load": str(folders["alike"])}
    with trainer(tiny, KL | TAUGHT, **load) as rank:
        policy, frozen, begun = rank.trainee.model, rank.trainee.frozen, bits(rank)
        places = [parameter.data_ptr() for parameter in policy.parameters()]
        with frozen[REFERENCE].residence.present(policy) as model:
            assert model is policy
            assert [parameter.data_ptr() for parameter in policy.parameters()] == places
            assert digest_of(rank.export_bytes()) == frozen[REFERENCE].digest
        assert [parameter.data_ptr() for parameter in policy.parameters()] == places
        assert same(bits(rank), begun)
        visitor = frozen[TEACHER].residence
        assert isinstance(visitor, VisitingModel)
        host = {tensor.data_ptr() for tensor in visitor._host}
        with visitor.present(policy) as model:
            assert {parameter.data_ptr() for parameter in model.parameters()}.isdisjoint(host)
        assert {parameter.data_ptr() for parameter in model.parameters()} == host
        assert not any(parameter.requires_grad for parameter in model.parameters())
        assert all(parameter.requires_grad for parameter in policy.parameters())


class Stop(Exception):
    """End a pass like a user's function or an interrupt."""


@pytest.mark.parametrize("name", [REFERENCE, TEACHER])
def test_a_pass_that_fails_leaves_the_policy_as_it_was(
    name: str, folders: dict[str, Path], tiny: Path, trainer: Trainer, on_host: Callable[[bool], None]
) -> None:
    on_host(True)
    load = {"opd_teacher_load": str(folders["other"]), "ref_load": str(folders["alike"])}
    with trainer(tiny, KL | TAUGHT, freeze_params_name_list=["word_embeddings"], **load) as rank:
        begun, frozen = bits(rank), rank.trainee.frozen[name]
        trained = [parameter.requires_grad for parameter in rank.trainee.model.parameters()]
        assert not all(trained)
        with pytest.raises(Stop), frozen.residence.present(rank.trainee.model):
            raise Stop
        assert same(bits(rank), begun)
        assert [parameter.requires_grad for parameter in rank.trainee.model.parameters()] == trained
        with frozen.residence.present(rank.trainee.model) as model:
            assert not any(parameter.requires_grad for parameter in model.parameters())
            # What was asked is whole too.
            assert digest(model, frozen) == frozen.digest
        assert rank.train(make_batch()).models[name] == frozen.digest


def digest(model: torch.nn.Module, frozen: Any) -> str:
    return model_digest(model, frozen.architecture, frozen.place)


def test_an_exchange_that_fails_half_way_is_taken_back(
    tiny: Path, folders: dict[str, Path], trainer: Trainer, on_host: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Undo an exchange that fails as on a device without memory for the largest parameter."""
    on_host(True)
    with trainer(tiny, KL, ref_load=str(folders["alike"])) as rank:
        begun, frozen = bits(rank), rank.trainee.frozen[REFERENCE]
        exchange, left = residence._exchange, iter([True] * 3)

        def fails(parameter: Tensor, host: Tensor) -> None:
            if not next(left, False):
                monkeypatch.setattr(residence, "_exchange", exchange)
                raise torch.OutOfMemoryError
            exchange(parameter, host)

        monkeypatch.setattr(residence, "_exchange", fails)
        with pytest.raises(torch.OutOfMemoryError), frozen.residence.present(rank.trainee.model):
            pytest.fail("the pass began")
        assert same(bits(rank), begun)
        with frozen.residence.present(rank.trainee.model) as model:
            assert digest(model, frozen) == frozen.digest


def test_a_version_that_is_not_what_it_says_leaves_the_policy_as_it_was(
    tiny: Path, folders: dict[str, Path], trainer: Trainer, on_host: Callable[[bool], None]
) -> None:
    on_host(True)
    with trainer(tiny, KL | {"ref_update_interval": 2}) as rank:
        begun = bits(rank)
        for folder in (folders["alike"], folders["other"]):
            batch: TrainBatch = dataclasses.replace(make_batch(), reference=StoredVersion(1, str(folder), "0" * 64))
            with pytest.raises(CheckpointMismatch):
                rank.train(batch)
            assert same(bits(rank), begun)


def test_the_main_weights_of_the_optimizer_are_not_exchanged(
    tiny: Path, folders: dict[str, Path], trainer: Trainer, on_host: Callable[[bool], None]
) -> None:
    on_host(True)
    with trainer(tiny, KL, ref_load=str(folders["alike"]), bf16=True) as rank:
        before = rank.optimizer_digest()
        with rank.trainee.frozen[REFERENCE].residence.present(rank.trainee.model):
            assert rank.optimizer_digest() == before
        assert rank.optimizer_digest() == before


def test_no_pass_gathers_parameters_of_the_policy_meanwhile(
    tiny: Path, trainer: Trainer, on_host: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep `overlap_param_gather` from restoring the policy's parameters in the middle of a reference's
    forward pass.
    """
    on_host(True)
    with trainer(tiny, KL) as rank:
        policy, calls = rank.trainee.model, list[str]()
        monkeypatch.setattr(policy, "use_forward_hook", True)
        monkeypatch.setattr(policy, "disable_forward_pre_hook", lambda: calls.append("disable"))
        monkeypatch.setattr(policy, "enable_forward_pre_hook", lambda: calls.append("enable"))
        scores_of = Trainee.scores_of

        def noted(*args: Any, **named: Any) -> Any:
            calls.append("pass")
            return scores_of(*args, **named)

        monkeypatch.setattr(Trainee, "scores_of", noted)
        rank.train(make_batch())
        assert calls == ["disable", "pass", "enable"]


def test_a_user_s_function_sees_the_model_that_is_asked(
    tiny: Path, folders: dict[str, Path], trainer: Trainer, on_host: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Pass what slime passes: the actor's model, with the weights of the requested one."""
    on_host(True)
    with trainer(tiny, KL, ref_load=str(folders["alike"])) as rank:
        frozen, seen = rank.trainee.frozen[REFERENCE], dict[str, str]()

        def notify(point: PlugPoint, *args: Any) -> None:
            if point is BEFORE_LOG_PROB:
                (model,), prefix = args
                seen[prefix] = digest(model, frozen)

        monkeypatch.setattr(rank.trainee.functions, "notify", notify)
        rank.train(make_batch())
    assert seen["ref_"] == frozen.digest


def test_on_the_cpu_each_has_its_own_model(tiny: Path, trainer: Trainer) -> None:
    assert not residence.waits_on_host()
    with trainer(tiny, KL) as rank:
        assert isinstance(rank.trainee.frozen[REFERENCE].residence, OwnModel)


def test_a_gpu_lets_them_wait_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residence, "on_cpu", lambda: False)
    assert residence.waits_on_host()

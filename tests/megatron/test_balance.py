"""The auxiliary losses of routers against their formulas, by transformers' models and autograd."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from actors.megatron.families.balance_losses import BalanceLosses
from schemas.errors import InvalidValue
from tests.megatron.gradients import gradients_of, plain_gradients
from tests.megatron.recomputing import FULL, recomputing
from tests.megatron.tiny import make_batch, make_model

Trainer = Callable[..., Any]
SEVERAL = {"clip_grad": 0.0, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 60}
"""Settings for several micro batches of an optimizer step."""


class Logits:
    """The logits of each router of a model for each sample that is passed, float64 [tokens, experts]."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.of_layers: list[list[Tensor]] = []
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                layer: list[Tensor] = []
                self.of_layers.append(layer)
                module.register_forward_pre_hook(lambda gate, inputs, layer=layer: self._add(layer, gate, inputs[0]))

    def _add(self, layer: list[Tensor], gate: Any, hidden: Tensor) -> None:
        layer.append(F.linear(hidden.reshape(-1, hidden.shape[-1]).double(), gate.weight.double()))


def balance_of(logits: Tensor, sigmoid: bool, chosen: int) -> Tensor:
    """Return the balance of tokens, by a loop over experts as DeepSeek-V3's report writes it."""
    scores = logits.sigmoid() if sigmoid else logits.exp()
    shares = scores / scores.sum(1, keepdim=True)
    tokens, experts = logits.shape
    total = torch.zeros((), dtype=torch.float64)
    ranked = scores.argsort(1, descending=True)[:, :chosen]
    for expert in range(experts):
        frequency = experts / (chosen * tokens) * (ranked == expert).sum()
        total = total + frequency * shares[:, expert].sum() / tokens
    return total


def of_sequences(layer: list[Tensor], sigmoid: bool, chosen: int) -> Tensor:
    return torch.stack([balance_of(logits, sigmoid, chosen) for logits in layer]).mean()


def of_step(layer: list[Tensor], sigmoid: bool, chosen: int) -> Tensor:
    return balance_of(torch.cat(layer), sigmoid, chosen)


def of_logits(layer: list[Tensor], sigmoid: bool, chosen: int) -> Tensor:
    return torch.cat(layer).exp().sum(1).log().square().mean()


KINDS: dict[str, tuple[dict[str, Any], str, Callable[[list[Tensor], bool, int], Tensor]]] = {
    "sequence": (
        {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.3},
        "seq_load_balancing_loss",
        of_sequences,
    ),
    "step": ({"moe_aux_loss_coeff": 0.3}, "load_balancing_loss", of_step),
    "logits": ({"moe_z_loss_coeff": 0.3}, "z_loss", of_logits),
}
FAMILIES = {"qwen3_moe": 2, "deepseek_v2_groups": 2, "glm4_moe": 4, "deepseek_v3": 4}
"""Experts of a token: softmax; softmax in groups; sigmoid, bias and groups, with and without latent attention."""


@pytest.mark.parametrize("family", FAMILIES)
def test_each_gradient_is_that_of_the_formula(family: str, tmp_path: Path, trainer: Trainer) -> None:
    make_model(tmp_path, family, tied=False)
    batch, sigmoid = make_batch(), family in ("glm4_moe", "deepseek_v3")
    for kind, (flags, metric, loss_of) in KINDS.items():
        model = make_model(tmp_path / "plain", family, tied=False)
        logits, values = Logits(model), list[float]()

        def further(logits: Logits = logits, values: list[float] = values, loss_of: Any = loss_of) -> Tensor:
            losses = torch.stack([loss_of(layer, sigmoid, FAMILIES[family]) for layer in logits.of_layers])
            values.append(float(losses.mean()))
            return 0.3 * losses.sum()

        expected = plain_gradients(model, batch, further)
        with trainer(tmp_path, megatron=flags, **SEVERAL) as rank:
            metrics, gradients = rank.train(batch).metrics, gradients_of(rank)
        assert metrics[metric] == pytest.approx(values[0], rel=1e-5), kind
        assert gradients.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(gradients[name], gradient, atol=2e-6, rtol=2e-4, msg=f"{kind}: {name}")


def test_the_balance_of_a_step_is_transformers(tmp_path: Path, trainer: Trainer) -> None:
    """transformers counts all choices of a token as one, so that its loss is larger by their number."""
    model = make_model(tmp_path, "qwen3_moe", tied=False, num_hidden_layers=1)
    logits, batch = Logits(model), make_batch()
    with torch.no_grad():
        for sample in batch.samples:
            model(torch.from_numpy(sample.tokens).long()[None])
    theirs = load_balancing_loss_func((torch.cat(logits.of_layers[0]).float(),), num_experts=4, top_k=2)
    with trainer(tmp_path, megatron=KINDS["step"][0], **SEVERAL) as rank:
        assert rank.train(batch).metrics["load_balancing_loss"] == pytest.approx(float(theirs) / 2, rel=1e-6)


def test_losses_of_two_updates_with_recomputed_layers(tmp_path: Path, trainer: Trainer) -> None:
    """The metrics of a step are means over its updates, and a layer that is computed again counts once."""
    make_model(tmp_path, "qwen3_moe", tied=False)
    balanced = KINDS["sequence"][0] | KINDS["logits"][0]
    experts = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}
    outcomes = []
    for flags in ({}, FULL, experts):
        settings = {"megatron": balanced | flags, "num_steps_per_rollout": 2, **SEVERAL}
        with recomputing(), trainer(tmp_path, **settings) as rank:
            assert rank.trainee.model.config.recompute_granularity == flags.get("recompute_granularity")
            metrics = rank.train(make_batch()).metrics
            outcomes.append({name: metrics[name] for name in ("seq_load_balancing_loss", "z_loss", "grad_norm")})
    assert outcomes[1] == pytest.approx(outcomes[0], rel=1e-6)
    assert outcomes[2] == pytest.approx(outcomes[0], rel=1e-6)


def test_samples_without_an_advantage_balance_experts_too(tmp_path: Path, trainer: Trainer) -> None:
    make_model(tmp_path, "qwen3_moe", tied=False)
    batch, passed = make_batch(zero=True), []
    for flags in ({}, KINDS["step"][0]):
        with trainer(tmp_path, megatron=flags) as rank:
            passed.append(rank.train(batch).metrics["samples_passed"])
    assert passed[0] < passed[1] == len(batch.samples)


def test_megatrons_settings_are_read() -> None:
    def of(kind: object, coefficient: object, z: object = None) -> BalanceLosses:
        names = ("moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff")
        return BalanceLosses.of(dict(zip(names, (kind, coefficient, z), strict=True)))

    assert not of("seq_aux_loss", 0)
    assert not of("none", 0.1)
    assert of(None, 0.1) == of("aux_loss", [0.1]) == of("global_aux_loss", 0.1) == BalanceLosses(step=0.1)
    assert of(["seq_aux_loss", "global_aux_loss"], [0.1, 0.2], 1e-3) == BalanceLosses(0.1, 0.2, 1e-3)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"moe_router_load_balancing_type": "sinkhorn"}, "sinkhorn"),
        ({"moe_router_load_balancing_type": "else"}, "else"),
        ({"moe_aux_loss_coeff": -0.1}, "moe-aux-loss-coeff -0.1"),
        ({"moe_aux_loss_coeff": float("nan")}, "moe-aux-loss-coeff nan"),
        ({"moe_aux_loss_coeff": [0.1, 0.2]}, "2 values for 1"),
        ({"moe_z_loss_coeff": "x"}, "moe-z-loss-coeff x"),
    ],
)
def test_a_loss_that_cannot_be_is_refused(flags: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        BalanceLosses.of(flags)

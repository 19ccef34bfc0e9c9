"""A client's passes and updates on a rank, against plain torch and torch's own Adam."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from slime_events.core.training.datums import LOSSES, AdamParams, Beginning, CommandedStep, Datum, TrainPass
from slime_events.core.training.train_batch import TrainBatch

Trainer = Callable[..., Any]
ADAM = AdamParams(learning_rate=1e-3, beta1=0.8, beta2=0.9, eps=1e-6, grad_clip_norm=0.5)


def datums(seed: int, lengths: tuple[int, ...] = (3, 7, 5)) -> tuple[Datum, ...]:
    numbers = np.random.default_rng(seed)
    data = []
    for length in lengths:
        inputs = {name: numbers.normal(size=length).astype(np.float32) for name in ("weights", "advantages")}
        inputs["logprobs"] = -numbers.exponential(4.0, size=length).astype(np.float32)
        tokens, targets = (numbers.integers(0, 60, length).astype(np.int32) for _ in range(2))
        data.append(Datum(tokens, targets, inputs))
    return tuple(data)


def pass_of(loss: str, seed: int = 0, key: str = "") -> TrainPass:
    return TrainPass(key or f"{loss} {seed}", loss, LOSSES[loss].config, datums(seed))


def step(number: int, *passes: TrainPass, update: AdamParams | Beginning = ADAM) -> TrainBatch:
    return TrainBatch(number, (), commanded=CommandedStep(passes, update))


def log_probs_of(model: Any, datum: Datum) -> Tensor:
    logits = model(torch.from_numpy(datum.tokens).long()[None]).logits[0].log_softmax(-1)
    chosen_log_probs: Tensor = logits.gather(1, torch.from_numpy(datum.targets).long()[:, None])[:, 0]
    return chosen_log_probs


def plain_loss(loss: str, log_probs: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Compute the loss as Tinker's documentation writes it."""
    ratio = torch.exp(log_probs - inputs["logprobs"])
    clipped = torch.clamp(ratio, 0.8, 1.2)
    advantages = inputs["advantages"]
    return {
        "cross_entropy": lambda: (-log_probs * inputs["weights"]).sum(),
        "importance_sampling": lambda: -(ratio * advantages).sum(),
        "ppo": lambda: -torch.min(ratio * advantages, clipped * advantages).sum(),
        "cispo": lambda: -(clipped.detach() * log_probs * advantages).sum(),
        "dro": lambda: -(log_probs * advantages - 0.5 * 0.05 * (log_probs - inputs["logprobs"]) ** 2).sum(),
    }[loss]()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_pass_gives_the_log_probs_and_the_gradient_of_its_loss(loss: str, tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny, micro_batch_size=2) as rank:
        first = rank.run_pass(pass_of(loss), True)
        rank.run_pass(pass_of("cross_entropy", 5), False)  # leaves the gradient alone
        second = rank.run_pass(pass_of(loss, 1), True)
        gradient = rank.trainee.model.module.embedding.word_embeddings.weight.main_grad.clone()
    model = AutoModelForCausalLM.from_pretrained(tiny)
    for result, seed in ((first, 0), (second, 1)):
        parts = [(log_probs_of(model, datum), datum) for datum in datums(seed)]
        total = torch.zeros(())
        for log_probs, datum in parts:
            total = total + plain_loss(loss, log_probs, {k: torch.from_numpy(v) for k, v in datum.inputs.items()})
        total.backward()
        expected = torch.cat([log_probs for log_probs, _ in parts]).detach().numpy()
        np.testing.assert_allclose(result.log_probs, expected, atol=1e-5)
        assert result.loss == pytest.approx(total.item(), rel=1e-4)
    torch.testing.assert_close(gradient, model.get_input_embeddings().weight.grad, atol=1e-5, rtol=1e-3)


def test_an_update_is_adams_with_what_the_client_says(tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny) as rank:
        for number in range(2):
            result = rank.train(step(number, pass_of("cross_entropy", number)))
        weights = dict(rank.export_weights())["model.embed_tokens.weight"].clone()
    model = AutoModelForCausalLM.from_pretrained(tiny)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.0)
    for number in range(2):
        adam.zero_grad()
        for datum in datums(number):
            (-log_probs_of(model, datum) * torch.from_numpy(datum.inputs["weights"])).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        adam.step()
    assert result.metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-3)
    torch.testing.assert_close(weights.float(), model.get_input_embeddings().weight.detach(), atol=2e-5, rtol=1e-3)


def test_gradients_that_were_lost_or_are_anothers_are_made_again_to_the_same_bits(tiny: Path, trainer: Trainer) -> None:
    passes = pass_of("ppo", 1), pass_of("cross_entropy", 2), pass_of("cross_entropy", 3)

    def digest(*before: TrainPass) -> str:
        with trainer(tiny) as rank:
            for pass_ in before:
                rank.run_pass(pass_, True)
            return str(rank.train(step(0, *passes)).optimizer_digest)

    calm = digest(*passes)
    assert {digest(), digest(*passes[:1]), digest(passes[1]), digest(pass_of("dro", 9))} == {calm}


def test_a_gradient_that_is_no_number_leaves_everything_as_it_is(tiny: Path, trainer: Trainer) -> None:
    datum = datums(0)[0]
    broken = Datum(datum.tokens, datum.targets, {"weights": np.full(3, np.inf, np.float32)})
    with trainer(tiny) as rank:
        before = rank.optimizer_digest()
        result = rank.train(step(0, TrainPass("broken", "cross_entropy", {}, (broken,))))
        assert result.metrics["skipped"] == 1.0
        assert result.optimizer_digest == before
        assert rank.train(step(1, pass_of("cross_entropy"))).metrics["skipped"] == 0.0


def test_a_beginning_has_the_weights_and_the_optimizer_that_it_names(
    tiny: Path, trainer: Trainer, tmp_path: Path
) -> None:
    with trainer(tiny) as rank:
        first = rank.train(step(0, pass_of("cross_entropy"))).optimizer_digest
        rank.save_checkpoint(tmp_path / "saved")
        second = rank.train(step(1, pass_of("ppo"))).optimizer_digest
        again = Beginning(1, optimizer=True, checkpoint=str(tmp_path / "saved"))
        assert rank.train(step(2, update=again)).optimizer_digest == first
        assert rank.train(step(3, pass_of("ppo"))).optimizer_digest == second
        rank.run_pass(pass_of("dro"), True)
        rank.train(step(4, update=Beginning()))
        assert rank.train(step(5, pass_of("cross_entropy"))).optimizer_digest == first

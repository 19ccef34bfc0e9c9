"""Replace our schedule by Megatron's, which also runs pipelines: it calls forward pass and loss apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core.pipeline_parallel import get_forward_backward_func

from actors.megatron import trained
from actors.megatron.cpu import stand_in
from actors.step.schedule import Gradients
from tests.megatron.tiny import make_batch

Trainer = Callable[..., Any]
ALGORITHMS: dict[str, dict[str, Any]] = {
    "policy": {"use_kl_loss": True, "kl_loss_coef": 0.1, "entropy_coef": 0.01},
    "sft": {"loss_type": "sft_loss"},
    "critic": {"advantage_estimator": "ppo"},
}
calls = list[int]()


class OfMegatron:
    """`get_forward_backward_func` as a `Schedule`; here with a single stage."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer

    def run(self, batches: Sequence[list[int]], forward: Any, loss: Any, gradients: Gradients) -> list[Any]:
        if not batches:
            return []

        def step(members_of: Iterator[list[int]], model: object) -> tuple[Any, Callable[[Any], Any]]:
            members = next(members_of)
            calls.append(len(members))

            def loss_of(output: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
                value, figures = loss(output, members)
                return torch.zeros(()) if value is None else value, torch.tensor(1), figures

            return forward(members), loss_of

        config = self._model.config
        # Our loss is divided by the weight of the whole step already.
        config.calculate_per_token_loss, config.grad_scale_func = True, self._optimizer.scale_loss
        config.no_sync_func = getattr(self._model, "no_sync", None)  # a frozen model has none
        config.finalize_model_grads_func = None
        with stand_in(), torch.set_grad_enabled(gradients is not Gradients.NONE):
            return get_forward_backward_func()(
                forward_step_func=step,
                data_iterator=iter(batches),
                model=self._model,
                num_microbatches=len(batches),
                seq_length=1,
                micro_batch_size=1,
                forward_only=gradients is Gradients.NONE,
            )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_is_the_same_bit_for_bit(
    algorithm: str, tiny: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [make_batch(step, zero=True) for step in range(2)]
    digests = []
    for schedule in (trained.single, OfMegatron):
        monkeypatch.setitem(trained.SCHEDULES, trained.SINGLE, schedule)
        calls.clear()
        options = {"micro_batch_size": 3, "num_steps_per_rollout": 2, "use_dynamic_batch_size": True}
        with trainer(tiny, ALGORITHMS[algorithm], max_tokens_per_gpu=40, **options) as rank:
            results = [rank.train(batch) for batch in batches]
        digests.append([(result.optimizer_digest, result.critic_digest, result.metrics["loss"]) for result in results])
    assert len(calls) > 8
    assert digests[0] == digests[1]

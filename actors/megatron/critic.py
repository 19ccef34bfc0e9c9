"""`build_critic`: the value model of PPO, with an optimizer and a schedule of its own, beside the policy."""

from dataclasses import replace
from typing import Any

import torch
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.transformer_config import TransformerConfig
from msgspec import structs
from torch import Tensor

from actors.megatron import checkpoint
from actors.megatron.architecture import Architecture
from actors.megatron.flags import MegatronFlags
from actors.megatron.forward import MicroBatch, response_outputs
from actors.megatron.model import PolicyModel, build_model
from actors.megatron.optimizer import build_optimizer, build_scheduler, wrap_data_parallel
from actors.megatron.trainee import Critic, Place
from actors.megatron.weights import load_hf_weights
from slime_events.core.config.trainer import TrainerSettings

HEAD_STD = 0.02
"""Of the weights of a head that no checkpoint has, as slime's."""


class ValueHead(torch.nn.Linear):
    """One output in place of logits; whole on every tensor parallel rank, which all see the same hidden states."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config.hidden_size, 1, dtype=config.params_dtype)
        self._sequence_parallel = config.sequence_parallel

    def forward(self, hidden: Tensor, weight: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        """[positions, 1, hidden] -> float32 [positions, 1, 1]; weight: the embedding, which has no part in it."""
        if self._sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return super().forward(hidden).float(), None


class ValueModel(PolicyModel):
    """The policy's architecture under a `ValueHead`."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.output_layer = ValueHead(self.config)


def build_critic(
    architecture: Architecture,
    config: TransformerConfig,
    settings: TrainerSettings,
    flags: MegatronFlags,
    place: Place,
) -> Critic:
    """A critic that has done nothing yet. Its weights are those of a Hugging Face folder: `critic_load`, or what the
    policy begins with. A folder that has a value head (`score.weight`, as reward models have) gives that one too; else
    the head is random, by the seed. Raises CheckpointMismatch.
    """
    own = structs.replace(
        settings,
        lr=settings.lr if settings.critic_lr is None else settings.critic_lr,
        lr_warmup_iters=settings.critic_lr_warmup_iters,
    )
    headless = replace(architecture, tied=True)  # there is no output to tie or to load
    model = build_model(headless, config, place.device, kind=ValueModel)
    head = next(module for module in model.modules() if isinstance(module, ValueHead))
    with torch.no_grad():
        seeded = torch.Generator().manual_seed(settings.seed)
        head.weight.copy_(torch.randn(head.weight.shape, generator=seeded) * HEAD_STD)
        head.bias.zero_()
    given = [one for one in (settings.critic_load, settings.load) if one and not checkpoint.is_checkpoint(one)]
    load_hf_weights(model, headless, [*given, settings.hf_checkpoint][0], place.tensor)
    wrapped = wrap_data_parallel(model, config, own, flags)
    optimizer = build_optimizer(wrapped, own, flags)
    return Critic(wrapped, optimizer, build_scheduler(optimizer, own, flags.scheduler))


def response_values(model: torch.nn.Module, batch: MicroBatch) -> list[Tensor]:
    """Value of each response token before it is known, float32 [response] for each sample."""
    return batch.by_sample(response_outputs(model, batch).squeeze(-1))

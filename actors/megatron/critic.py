"""`build_critic`: build PPO's value model with its own optimizer and schedule."""

from dataclasses import replace

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from msgspec import structs
from torch import Tensor

from actors.megatron import checkpoint
from actors.megatron.families.architecture import Architecture
from actors.megatron.flags import MegatronFlags
from actors.megatron.model import PolicyModel, build_model
from actors.megatron.optimizer import build_optimizer, build_scheduler, wrap_data_parallel
from actors.megatron.trained import Critic
from actors.megatron.weights import load_hf_weights
from actors.step.place import Place
from slime_events.core.config.trainer import TrainerSettings

HEAD_STD = 0.02
"""Standard deviation of a random value head's weights, as in slime."""


class ValueHead(torch.nn.Linear):
    """A single output that replaces the logits. Each tensor parallel rank has the whole head and all hidden states."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config.hidden_size, 1, dtype=config.params_dtype)

    def forward(self, hidden: Tensor, weight: Tensor | None = None, **_: object) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return values, float32 [positions, 1, 1], of [positions, 1, hidden]. weight: the embedding, ignored."""
        return super().forward(hidden).float(), None


class ValueModel(PolicyModel):
    """The policy's architecture with a `ValueHead`."""

    def __init__(self, **options: object) -> None:
        # On a last stage of several, the head would be a copy of the first stage's embedding.
        is_whole = options["pre_process"] and options["post_process"]
        super().__init__(**options if is_whole else {**options, "share_embeddings_and_output_weights": False})
        if self.post_process:
            self.output_layer = ValueHead(self.config)


def build_critic(
    architecture: Architecture,
    config: TransformerConfig,
    settings: TrainerSettings,
    flags: MegatronFlags,
    place: Place,
) -> Critic:
    """Return a new critic with the weights of `critic_load`, or the policy's initial weights.

    If the folder has a value head (`score.weight`, as reward models have), the head is loaded; if not, it is random by
    the seed. Raises CheckpointMismatch.
    """
    own = structs.replace(
        settings,
        lr=settings.lr if settings.critic_lr is None else settings.critic_lr,
        lr_warmup_iters=settings.critic_lr_warmup_iters,
    )
    headless = replace(architecture, tied=True)  # a critic has no output layer to load
    model = build_model(headless, config, place.device, kind=ValueModel)
    for head in (module for module in model.modules() if isinstance(module, ValueHead)):
        with torch.no_grad():
            seeded = torch.Generator().manual_seed(settings.seed)
            head.weight.copy_(torch.randn(head.weight.shape, generator=seeded) * HEAD_STD)
            head.bias.zero_()
    starts = (settings.critic_load, None), (settings.load, settings.ckpt_step)
    folders = [(path, step) for path, step in starts if path and not checkpoint.is_checkpoint(path)]
    folder, step = [*folders, (settings.hf_checkpoint, None)][0]
    load_hf_weights(model, headless, folder, place, step)
    wrapped = wrap_data_parallel(model, config, own, flags)
    optimizer = build_optimizer(wrapped, own, flags)
    return Critic(wrapped, optimizer, build_scheduler(optimizer, own, flags.scheduler))

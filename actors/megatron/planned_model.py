"""`PlannedArchitecture`: the numbers that a plan needs of a model, from the trainer's own arithmetic."""

from __future__ import annotations

from actors.megatron.activations import activation_bytes
from actors.megatron.families.architecture import Architecture
from actors.megatron.layout import Layout
from actors.megatron.memory import count_parameters, rank_memory, shards_optimizer, stage_parameters
from actors.step.data_split import forward_flops
from schemas.errors import SlimeEventsError
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.planning.assumptions import GIB, Assumptions
from slime_events.core.planning.model import ModelShape, RankBytes, TokenLoad


class PlannedArchitecture:
    """An architecture in a plan. frozen: models that wait in host memory, such as a reference. critic: PPO's."""

    def __init__(self, architecture: Architecture, *, frozen: int = 0, critic: bool = False) -> None:
        self._architecture, self._frozen, self._critic = architecture, frozen, critic

    @property
    def shape(self) -> ModelShape:
        """The whole model's numbers."""
        model = self._architecture
        counted = stage_parameters(model, range(model.num_layers), first=True, last=True)
        total = count_parameters(model)
        experts = model.experts
        used = 0 if experts is None else counted.experts * experts.per_token // experts.count
        latent = model.latent
        return ModelShape(
            parameters=total,
            active=counted.copied + counted.cut + used - model.vocab_size * model.hidden_size * (not model.tied),
            layers=model.num_layers,
            copied=counted.copied,
            cut=counted.cut,
            experts=counted.experts,
            key_value_heads=model.num_query_groups,
            key_value_width=model.key_value_size // model.num_query_groups,
            latent_width=None if latent is None else latent.key_value_rank + latent.rotated_size,
        )

    def refusal(self, trainer: TrainerSettings) -> str | None:
        """Return why the model cannot be divided over the ranks; None if it can."""
        try:
            layout = Layout.of(trainer)
            layout.check(self._architecture)
            layout.check_ranks(trainer.world_size)
        except SlimeEventsError as error:
            return str(error)
        return None

    def forward_flops(self, tokens: int) -> int:
        """Return the floating point operations of a forward pass over a sample."""
        return forward_flops(self._architecture, tokens)

    def rank(self, trainer: TrainerSettings, load: TokenLoad, assumed: Assumptions) -> RankBytes:
        """Return the bytes of the rank that needs the most."""
        stages = range(trainer.pipeline_model_parallel_size)
        return max((self._stage(trainer, stage, load, assumed) for stage in stages), key=lambda rank: rank.total)

    def _stage(self, trainer: TrainerSettings, stage: int, load: TokenLoad, assumed: Assumptions) -> RankBytes:
        model, layout = self._architecture, Layout.of(trainer)
        memory = rank_memory(
            model,
            layout,
            trainer.world_size,
            stage=stage,
            bf16=trainer.bf16 is not False,
            sharded=shards_optimizer(trainer),
        )
        offloaded = bool(trainer.megatron.get("optimizer_cpu_offload"))
        models = 2 if self._critic else 1  # the critic has the policy's layers and an optimizer of its own
        tokens = rank_tokens(trainer, load)
        values = activation_bytes(model, layout, trainer.megatron, stage, tokens, assumed.expert_imbalance)
        last = stage == trainer.pipeline_model_parallel_size - 1
        rows = tokens if (chunk := trainer.log_probs_chunk_size or -1) < 0 else min(tokens, chunk)
        logits = rows * model.vocab_size / layout.tensor * assumed.logit_bytes if last else 0.0
        host = 2 * memory.parameters * self._frozen + models * memory.optimizer * offloaded
        return RankBytes(
            parameters=memory.parameters,
            weights=models * memory.weights,
            gradients=models * memory.gradients,
            optimizer=0 if offloaded else models * memory.optimizer,
            activations=int(values * assumed.activation_factor),
            logits=int(logits),
            runtime=int(assumed.rank_gib * GIB),
            host=host,
        )


def rank_tokens(trainer: TrainerSettings, load: TokenLoad) -> int:
    """Return the most tokens of a micro batch on a rank. A sample that exceeds the limit is a micro batch alone."""
    longest = -(-load.longest // trainer.context_parallel_size)
    if trainer.use_dynamic_batch_size and trainer.max_tokens_per_gpu:
        return max(trainer.max_tokens_per_gpu, longest)
    return trainer.micro_batch_size * longest

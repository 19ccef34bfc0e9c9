"""Megatron's GPTModel for an `Architecture`."""

import logging
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch import Tensor

from actors.megatron.attention import PackedSequences, give_ends_to_kernels
from actors.megatron.cpu import has_transformer_engine, on_cpu, stand_in
from actors.megatron.cpu_dispatcher import install_dispatcher
from actors.megatron.families.architecture import SAME_NAMES, Architecture
from actors.megatron.families.expert_layers import expert_config, keep_float32
from actors.megatron.families.latent_layers import latent_config
from actors.megatron.families.norm import use_own_norm
from actors.megatron.fusions import FusedKernels, fusions
from actors.megatron.grouped_experts import use_grouped_experts
from actors.megatron.layers import block_spec, layer_spec
from actors.megatron.layout import Layout, check_routing, replays_routing
from actors.megatron.own_model import EXPECTED, Building, check_parameters, own_model
from actors.megatron.prediction import prediction_loss
from actors.megatron.prediction_layer import PredictionBlock
from actors.megatron.router import use_own_router
from actors.megatron.router_choices import RouterChoices, choices_of, leave_alone, place_choices
from actors.megatron.virtual_stages import VirtualStages, interleaved_config
from actors.megatron.weights import model_rules, named_parameters
from actors.megatron.with_loss import WithLoss
from schemas.errors import InvalidValue
from slime_events.core.config.trainer import TrainerSettings
from slime_events.plugins.trainer_points import UserFunction

logger = logging.getLogger(__name__)


class PolicyModel(GPTModel):  # type: ignore[misc]  # Megatron's class is not typed
    """GPTModel that computes logits only for the rows of `PackedSequences.rows`, and supports prefix trees."""

    @cached_property
    def _routers(self) -> list[RouterChoices]:
        return choices_of(self)

    def _preprocess(self, *args: object, packed_seq_params: PackedSequences, **kwargs: object) -> tuple[Any, ...]:
        routing = packed_seq_params.routing
        if routing is None:
            leave_alone(self._routers)
        else:
            routing.begin(self._routers)
        inputs: tuple[Any, ...] = super()._preprocess(*args, packed_seq_params=packed_seq_params, **kwargs)
        hidden_states, rotary, *rest = inputs
        positions = packed_seq_params.position_ids
        # Latent attention has a RoPE of its own in each layer.
        if positions is None or rotary is None:
            return inputs
        return hidden_states, rotary.index_select(0, positions), *rest

    def _postprocess(
        self, hidden_states: Tensor, *args: object, packed_seq_params: PackedSequences, **kwargs: object
    ) -> Any:
        rows, by_rows = packed_seq_params.rows, packed_seq_params.by_rows
        if packed_seq_params.routing is not None:
            packed_seq_params.routing.end(self._routers)
        if not self.post_process:
            return hidden_states
        prediction = packed_seq_params.prediction
        if prediction is not None and hasattr(self, "mtp") and prediction.take():
            arguments = {"packed_seq_params": packed_seq_params, "rotary_pos_emb": kwargs["rotary_pos_emb"]}
            layer = partial(self._logits_of, frozen=True)
            loss = prediction_loss(self, prediction, hidden_states, layer, **arguments)
            hidden_states = WithLoss.apply(hidden_states, loss)  # type: ignore[no-untyped-call]
        if self.config.sequence_parallel:
            # Each rank computes all rows with its part of the output layer, which sums the gradient of its input.
            group = self.pg_collection.tp
            hidden_states = gather_from_sequence_parallel_region(hidden_states, False, group=group)
        if rows is not None:
            hidden_states = hidden_states.index_select(0, rows)
        if by_rows is not None:
            return by_rows(self._logits_of, hidden_states.squeeze(1))
        return super()._postprocess(hidden_states, *args, packed_seq_params=packed_seq_params, **kwargs)

    def take_whole_rows(self) -> None:
        """Give the output layer the hidden states of all positions, also with sequence parallelism."""
        self.output_layer.sequence_parallel, self.output_layer.allreduce_dgrad = False, True

    def _logits_of(self, hidden_states: Tensor, *, frozen: bool = False) -> Tensor:
        """Return logits [rows, vocabulary / tensor parallel ranks] of hidden states [rows, hidden].

        frozen: the output layer's weight gets no gradient.
        """
        tied = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if tied else None
        if frozen:
            weight = (self.output_layer.weight if weight is None else weight).detach()
        logits: Tensor = self.output_layer(hidden_states.unsqueeze(1), weight=weight)[0]
        return logits.squeeze(1)


def transformer_config(
    architecture: Architecture, settings: TrainerSettings, flags: Mapping[str, object]
) -> TransformerConfig:
    """Return Megatron's TransformerConfig. flags: the user's values of its fields, which override the defaults here.

    Raises InvalidValue.
    """
    layout = Layout.of(settings)
    layout.check(architecture)
    check_routing(settings, architecture)
    dtype = torch.bfloat16 if settings.bf16 else torch.float32
    interleaved = {"rotary_interleaved": architecture.rotary_interleaved}
    ranks = settings.tensor_model_parallel_size
    defaults = {
        "sequence_parallel": settings.sequence_parallel and ranks > 1,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "use_cpu_initialization": on_cpu(),
        "perform_initialization": False,  # checkpoints have all weights; on the CPU it would hold the weights twice
        "bias_dropout_fusion": False,
        **fusions({**flags, **interleaved}, None if on_cpu() else FusedKernels.of_this_machine()),
    }
    fixed = {
        **{name: getattr(architecture, name) for name in SAME_NAMES},
        **expert_config(architecture, flags),
        **latent_config(architecture),
        "moe_enable_routing_replay": replays_routing(settings),
        "layernorm_epsilon": architecture.norm_epsilon,
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "add_bias_linear": False,
        "bf16": bool(settings.bf16),
        "deterministic_mode": settings.deterministic,
        "tensor_model_parallel_size": ranks,
        "pipeline_model_parallel_size": settings.pipeline_model_parallel_size,
        "context_parallel_size": settings.context_parallel_size,
        **interleaved_config(layout.virtual_stages(architecture.num_layers)),
        "batch_p2p_sync": False,  # stages need it with versions of torch before 1.10
        # Sum gradients over data parallel ranks, not average them: the loss is already divided by the whole step.
        "calculate_per_token_loss": True,
    }
    try:
        kind = TransformerConfig if architecture.latent is None else MLATransformerConfig
        config = kind(**{**defaults, **flags, **fixed})
    except (ValueError, AssertionError, TypeError) as error:
        raise InvalidValue(f"Megatron refuses these settings: {error}") from error
    # Micro batches have different lengths. Megatron refuses this at first for its default dispatcher of
    # experts, even without experts; but it is wrong only if that dispatcher gathers from several ranks.
    config.variable_seq_lengths = settings.pipeline_model_parallel_size > 1
    # Megatron's own field would give experts other parameters in a model that a user's function builds.
    config.runs_groups = bool(flags.get("moe_grouped_gemm")) and architecture.experts is not None
    return config


def build_model(
    architecture: Architecture,
    config: TransformerConfig,
    device: torch.device,
    kind: type[PolicyModel] = PolicyModel,
    own: UserFunction | None = None,
    args: object = None,
) -> torch.nn.Module:
    """Return this rank's part of an uninitialized model on `device`; with bf16 inside a Float16Module.

    In an interleaved pipeline it is a `VirtualStages`. Layers are Transformer Engine's if it is installed, else
    Megatron's own with `PackedAttention`. own: a user's function that builds the model and sees `args`. Raises
    PlugPointError if the user's model has different parameters than the checkpoint.
    """
    install_dispatcher()
    if not has_transformer_engine():
        use_own_norm()
    parts = config.virtual_pipeline_model_parallel_size or 1
    stages = []
    for part in range(parts):
        ends = {
            "pre_process": parallel_state.is_pipeline_first_stage() and part == 0,
            "post_process": parallel_state.is_pipeline_last_stage() and part == parts - 1,
        }
        virtual_stage = part if parts > 1 else None
        usual = partial(_usual_model, architecture, config, kind, ends, virtual_stage)
        building = Building(args, config, usual, ends, virtual_stage)
        stages.append(_build_stage(architecture, building, device, own))
    return stages[0] if parts == 1 else VirtualStages(config, stages)


def _build_stage(
    architecture: Architecture, building: Building, device: torch.device, own: UserFunction | None
) -> torch.nn.Module:
    config = building.config
    with stand_in():
        model: torch.nn.Module = building.usual() if own is None else own_model(own, building)
        if type(model) is GPTModel:
            model.__class__ = PolicyModel
        if isinstance(model, PolicyModel) and model.post_process and config.sequence_parallel:
            model.take_whole_rows()
        give_ends_to_kernels(model)
        use_own_router(model)
        if config.moe_enable_routing_replay:
            place_choices(model)
        if getattr(config, "runs_groups", False):
            use_grouped_experts(model, config, device)
        model = model.to(device)
        # Mark the parameters that are cut over ranks, as Megatron's initialization does: without the mark, the gradient
        # norm would count only one rank's part.
        try:
            rules = model_rules(model, architecture)
        except KeyError as error:
            if own is None:
                raise
            raise own.refuse(model, f"{EXPECTED}: the checkpoint has no tensor for parameter {error}") from None
        if own is not None:
            check_parameters(own, model, rules, config.tensor_model_parallel_size)
        for name, parameter in named_parameters(model):
            if rules[name].cut is not None and not hasattr(parameter, "tensor_model_parallel"):
                set_tensor_model_parallel_attributes(parameter, is_parallel=True, dim=rules[name].cut, stride=1)
        if not config.bf16:
            return model
        half: torch.nn.Module = Float16Module(config, model)
        keep_float32(half)
        return half


def _usual_model(
    architecture: Architecture,
    config: TransformerConfig,
    kind: type[PolicyModel],
    ends: Mapping[str, bool],
    virtual_stage: int | None,
) -> PolicyModel:
    model = kind(
        config=config,
        transformer_layer_spec=block_spec(architecture, config, virtual_stage),
        vocab_size=architecture.vocab_size,
        max_sequence_length=architecture.max_position_embeddings,
        position_embedding_type="rope",
        rotary_percent=architecture.rotary_percent,
        rotary_base=architecture.rotary_base,
        rope_scaling=architecture.rope_scaling_factor is not None,
        rope_scaling_factor=architecture.rope_scaling_factor or 8.0,
        share_embeddings_and_output_weights=architecture.tied,
        parallel_output=True,
        **ends,
        vp_stage=virtual_stage,
    )
    if architecture.trains_prediction and model.post_process:
        layer = layer_spec(architecture, architecture.num_layers)
        model.mtp = PredictionBlock(config, layer, virtual_stage)
    return model

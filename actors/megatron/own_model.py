"""A model that a user's function builds (slime's `--custom-model-provider-path`), and the functions that it may call.

slime's providers read their settings from Megatron-LM's globals: `get_args` and `core_transformer_config_from_args`
have Megatron-LM's names, and `get_model_provider_func` returns slime's default model. None of them imports Megatron,
because a user's file is checked before a run needs Megatron.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from schemas.doc import doc
from schemas.errors import PlugPointError
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.trainer_points import UserFunction

if TYPE_CHECKING:
    import torch
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    from actors.megatron.families.architecture import Architecture
    from actors.megatron.families.rules import Rule

_OF_MEGATRON_LM: dict[str, object] = {
    "num_experts": None,
    "moe_grouped_gemm": False,
    "moe_use_legacy_grouped_gemm": False,
    "fp16_lm_cross_entropy": False,
    "fp8_param_gather": False,
    "mtp_num_layers": None,
    "spec": None,
}
"""Arguments that Megatron-LM's own provider reads besides the architecture."""
EXPECTED = "a megatron.core GPTModel with the parameters of the checkpoint's architecture"


class Building(NamedTuple):
    """The inputs of a rank's models."""

    args: Annotated[Any, doc("The result of `get_args`.")]
    config: Annotated[TransformerConfig, doc("The trainer's config.")]
    usual: Annotated[Callable[[], GPTModel], doc("Builds the model without a user's function.")]
    ends: Annotated[Mapping[str, bool], doc("pre_process and post_process: it has the first, the last layer.")]
    virtual_stage: Annotated[int | None, doc("Its number on this rank, in an interleaved pipeline.")] = None


_building: list[Building] = []
"""The inputs of this process's rank, set when it builds a model by a user's function."""


def args_of(architecture: Architecture, args: Mapping[str, object], *, local: bool) -> ArgsView:
    """Return the result of `get_args`. args: those of the rank's functions. local: Transformer Engine is missing."""
    sizes = {
        "padded_vocab_size": architecture.vocab_size,
        "max_position_embeddings": architecture.max_position_embeddings,
        "transformer_impl": "local" if local else "transformer_engine",
    }
    return ArgsView({**architecture.as_flags(), **_OF_MEGATRON_LM, **args, **sizes})


def _now() -> Building:
    if not _building:
        raise PlugPointError(
            "Megatron's settings exist only in the function that builds the model, in a trainer's rank"
        )
    return _building[-1]


def get_args() -> Any:
    """Return the settings of the run and the checkpoint's architecture under Megatron-LM's names."""
    return _now().args


def core_transformer_config_from_args(args: object, config_class: object = None) -> TransformerConfig:
    """Return a copy of the trainer's config, which the caller may change. Both arguments are ignored."""
    return copy.copy(_now().config)


def get_model_provider_func(args: object, role: str = "actor") -> Callable[..., GPTModel]:
    """Return a provider of the default model, for a user's provider that changes it."""
    if role != "actor":
        raise PlugPointError(f"get_model_provider_func: a user's function cannot build a {role}, only the actor")
    return lambda pre_process=True, post_process=True, vp_stage=None: _now().usual()


def own_model(function: UserFunction, building: Building) -> GPTModel:
    """Return the model that the user's function builds. Raises PlugPointError if it is not a GPTModel."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    from actors.megatron.attention import PackedAttention

    _building[:] = [building]
    stage = {"vp_stage": building.virtual_stage} if function.accepts("vp_stage") else {}
    model = function(**building.ends, **stage)
    if not isinstance(model, GPTModel):
        raise function.refuse(model, EXPECTED)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, DotProductAttention):  # it does not support packed sequences
                setattr(module, name, PackedAttention(building.config, child.softmax_scale))
    return model


def check_parameters(function: UserFunction, model: torch.nn.Module, rules: dict[str, Rule], ranks: int) -> None:
    """Raise PlugPointError if the shape of a parameter does not follow from the checkpoint's tensors."""
    import torch

    from actors.megatron.weights import named_parameters

    for name, parameter in named_parameters(model):
        tensors = [torch.empty(shape, device="meta") for shape in rules[name].shapes]
        shape = rules[name].merge(tensors, 0, ranks).shape
        if parameter.shape != shape:
            shapes = f"{name} has shape {list(parameter.shape)}, but the checkpoint gives {list(shape)}"
            raise function.refuse(model, f"{EXPECTED}: {shapes}")

"""A model that a user's function builds (slime's `--custom-model-provider-path`), and what such a function asks for.

slime's providers take their settings from Megatron-LM's globals: `get_args` and `core_transformer_config_from_args` are
here under Megatron-LM's names, `get_model_provider_func` gives slime's usual model. No Megatron is imported for them,
as a user's file is looked at before a run needs one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from schemas.errors import PlugPointError
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.trainer_points import UserFunction

if TYPE_CHECKING:
    import torch
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    from actors.megatron.architecture import Architecture
    from actors.megatron.weights import Rule

_OF_MEGATRON_LM: dict[str, Any] = {
    "num_experts": None,
    "moe_grouped_gemm": False,
    "moe_use_legacy_grouped_gemm": False,
    "fp16_lm_cross_entropy": False,
    "fp8_param_gather": False,
    "mtp_num_layers": None,
    "spec": None,
}
"""What Megatron-LM's own provider looks at beside the architecture."""
WANTED = "a megatron.core GPTModel with the parameters of the checkpoint's architecture"


class Building(NamedTuple):
    """What a rank builds its models of. usual: the model without a user's function."""

    args: Any
    config: TransformerConfig
    usual: Callable[[], GPTModel]


_building: list[Building] = []
"""Of the rank of this process, once it builds a model by a user's function."""


def args_of(architecture: Architecture, args: Mapping[str, Any], *, local: bool) -> ArgsView:
    """What `get_args` gives. args: of the rank's functions; local: there is no Transformer Engine."""
    sizes = {
        "padded_vocab_size": architecture.vocab_size,
        "max_position_embeddings": architecture.max_position_embeddings,
        "transformer_impl": "local" if local else "transformer_engine",
    }
    return ArgsView({**architecture.as_flags(), **_OF_MEGATRON_LM, **args, **sizes})


def _now() -> Building:
    if not _building:
        raise PlugPointError("Megatron's settings are known in the function that builds the model, in a trainer's rank")
    return _building[-1]


def get_args() -> Any:
    """Megatron-LM's: the settings of the run, and the checkpoint's architecture under Megatron's names."""
    return _now().args


def core_transformer_config_from_args(args: Any, config_class: Any = None) -> TransformerConfig:
    """Megatron-LM's: the trainer's own config, a copy that may be changed."""
    return copy.copy(_now().config)


def get_model_provider_func(args: Any, role: str = "actor") -> Callable[..., GPTModel]:
    """slime's: a provider of the usual model, for one that changes it."""
    if role != "actor":
        raise PlugPointError(f"get_model_provider_func: a {role} is not built by a function of one's own")
    return lambda pre_process=True, post_process=True, vp_stage=None: _now().usual()


def own_model(function: UserFunction, building: Building) -> GPTModel:
    """What the user's function builds. Raises PlugPointError for anything but a GPTModel."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    from actors.megatron.attention import PackedAttention

    _building[:] = [building]
    stage = {"vp_stage": None} if function.accepts("vp_stage") else {}
    model = function(pre_process=True, post_process=True, **stage)
    if not isinstance(model, GPTModel):
        raise function.refuse(model, WANTED)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, DotProductAttention):  # which takes no packed sequences
                setattr(module, name, PackedAttention(building.config, child.softmax_scale))
    return model


def check_parameters(function: UserFunction, model: torch.nn.Module, rules: dict[str, Rule], ranks: int) -> None:
    """Raises PlugPointError for a parameter that has another shape than the checkpoint's tensors give it."""
    import torch

    from actors.megatron.weights import named_parameters

    for name, parameter in named_parameters(model):
        tensors = [torch.empty(shape, device="meta") for shape in rules[name].shapes]
        shape = rules[name].merge(tensors, 0, ranks).shape
        if parameter.shape != shape:
            found = f"{name} of shape {list(parameter.shape)}, where the checkpoint gives {list(shape)}"
            raise function.refuse(model, f"{WANTED}: it has {found}")

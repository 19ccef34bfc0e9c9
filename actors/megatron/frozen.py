"""`freeze`: select the trained parameters by name (`--only-train-params-name-list`, `--freeze-params-name-list`)."""

import re
from collections.abc import Sequence

import torch
from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
from torch import Tensor

from actors.megatron.holders import of_whole_model
from actors.megatron.weights import EMBEDDING, is_tied_copy, named_parameters
from actors.step.place import Axis, Place
from schemas.errors import InvalidValue
from slime_events.core.config.trainer import TrainerSettings


def freeze(model: torch.nn.Module, settings: TrainerSettings, place: Place) -> None:
    """Disable the gradient of parameters that are not trained, so that optimizer and checkpoint have no state for them.

    Call it before the model is wrapped; collective. With both lists, train the parameters that the first names and the
    second does not. A rank that has only some of the layers or experts may have no trained parameter. Raises
    InvalidValue if an expression matches no parameter of the whole model, or if no parameter is left to train.
    """
    recomputes = settings.megatron.get("recompute_granularity") is not None
    only, frozen = settings.only_train_params_name_list, settings.freeze_params_name_list
    if not only and not frozen:
        return
    parameters = dict(named_parameters(model))
    names = list(of_whole_model(dict.fromkeys(parameters), place))
    for flag, expressions in (("--only-train-params-name-list", only), ("--freeze-params-name-list", frozen)):
        if idle := [text for text in expressions if not any(re.search(text, name) for name in names)]:
            kinds = dict.fromkeys(re.sub(r"\.\d+\.", ".N.", name) for name in names)
            raise InvalidValue(f"{flag} {' '.join(idle)} matches no parameter. The parameters are {', '.join(kinds)}")
    trained = {name for name in names if (not only or _named(name, only)) and not _named(name, frozen)}
    if not trained:
        raise InvalidValue("--only-train-params-name-list and --freeze-params-name-list leave no parameter to train")
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in trained)
    for copy in filter(is_tied_copy, model.parameters()):
        copy.requires_grad_(EMBEDDING in trained)
    if place.size(Axis.EXPERT) > 1 or place.size(Axis.EXPERT_TENSOR) > 1 or recomputes:
        _begin_graph(model)


def with_gradient(hidden: Tensor) -> Tensor:
    """Return hidden states that get a gradient in a pass with gradients, also if nothing before them is trained."""
    return hidden.requires_grad_() if torch.is_grad_enabled() else hidden


def _begin_graph(model: torch.nn.Module) -> None:
    """Let the backward pass of this rank go through all layers.

    Ranks that share experts exchange tokens in the backward pass of each layer, even if one of them trains nothing
    there. A layer that is recomputed needs an input with a gradient to get gradients of its own.
    """
    for module in model.modules():
        if isinstance(module, LanguageModelEmbedding):
            module.register_forward_hook(lambda _, inputs, output: with_gradient(output))


def _named(name: str, expressions: Sequence[str]) -> bool:
    return any(re.search(expression, name) for expression in expressions)

"""`freeze`: select the trained parameters by name (`--only-train-params-name-list`, `--freeze-params-name-list`)."""

import logging
import math
import re
from collections.abc import Collection, Sequence

import torch
from megatron.core.models.gpt import GPTModel
from torch import Tensor

from actors.megatron.equal_passes import shares_experts
from actors.megatron.families.architecture import Architecture
from actors.megatron.holders import of_whole_model
from actors.megatron.weights import EMBEDDING, is_tied_copy, named_parameters, rules_of
from actors.step.place import Place
from schemas.errors import InvalidValue
from slime_events.core.config.trainer import TrainerSettings

logger = logging.getLogger(__name__)


def freeze(model: torch.nn.Module, architecture: Architecture, settings: TrainerSettings, place: Place) -> None:
    """Disable the gradient of parameters that are not trained, so that optimizer and checkpoint have no state for them.

    Call it before the model is wrapped; collective. With both lists, train the parameters that the first names and the
    second does not. A rank that has only some of the layers or experts may have no trained parameter. Rank 0 logs how
    many parameters of the whole model are trained. Raises InvalidValue if an expression matches no parameter of the
    whole model, or if no parameter is left to train.
    """
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
    if place.rank == 0:
        count, every = count_elements(trained, architecture), count_elements(names, architecture)
        logger.info("%d of the model's %d parameters are trained (%.2f %%)", count, every, 100 * count / every)
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in trained)
    for copy in filter(is_tied_copy, model.parameters()):
        copy.requires_grad_(EMBEDDING in trained)
    # Ranks that share experts exchange tokens in the backward pass of each layer, even if one of them trains nothing
    # there. A layer that is recomputed gets gradients of its own only if its input has one.
    if shares_experts() or settings.megatron.get("recompute_granularity") is not None:
        _begin_at_embedding(model)


def count_elements(names: Collection[str], architecture: Architecture) -> int:
    """Return the number of elements of some parameters of the whole model, by Megatron's names, in any layout."""
    return sum(math.prod(shape) for rule in rules_of(names, architecture).values() for shape in rule.shapes)


def _begin_at_embedding(model: torch.nn.Module) -> None:
    """Let the backward pass of this rank go through all its layers, also if nothing before them is trained."""

    def begin(_module: torch.nn.Module, _inputs: object, output: Tensor) -> Tensor:
        return output.requires_grad_() if torch.is_grad_enabled() else output

    for part in model.modules():
        if isinstance(part, GPTModel) and part.pre_process:
            part.embedding.register_forward_hook(begin)


def _named(name: str, expressions: Sequence[str]) -> bool:
    return any(re.search(expression, name) for expression in expressions)

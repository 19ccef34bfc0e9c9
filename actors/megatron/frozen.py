"""`freeze`: select the trained parameters by name (`--only-train-params-name-list`, `--freeze-params-name-list`)."""

import re
from collections.abc import Sequence

import torch

from actors.megatron.weights import named_parameters
from schemas.errors import InvalidValue
from slime_events.core.config.trainer import TrainerSettings


def freeze(model: torch.nn.Module, settings: TrainerSettings) -> None:
    """Disable the gradient of parameters that are not trained, so that optimizer and checkpoint have no state for them.

    Call it before the model is wrapped. With both lists, train the parameters that the first names and the second does
    not. Raises InvalidValue if an expression matches no parameter, or if no parameter is left to train.
    """
    only, frozen = settings.only_train_params_name_list, settings.freeze_params_name_list
    parameters = dict(named_parameters(model))
    for flag, expressions in (("--only-train-params-name-list", only), ("--freeze-params-name-list", frozen)):
        if idle := [text for text in expressions if not any(re.search(text, name) for name in parameters)]:
            names = dict.fromkeys(re.sub(r"\.\d+\.", ".N.", name) for name in parameters)
            raise InvalidValue(f"{flag} {' '.join(idle)} matches no parameter. The parameters are {', '.join(names)}")
    for name, parameter in parameters.items():
        if (only and not _named(name, only)) or _named(name, frozen):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise InvalidValue("--only-train-params-name-list and --freeze-params-name-list leave no parameter to train")


def _named(name: str, expressions: Sequence[str]) -> bool:
    return any(re.search(expression, name) for expression in expressions)

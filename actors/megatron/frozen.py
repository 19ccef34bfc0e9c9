"""`freeze`: which parameters are trained, by name (`--only-train-params-name-list`, `--freeze-params-name-list`)."""

import re
from collections.abc import Sequence

import torch

from actors.megatron.weights import named_parameters
from schemas.errors import InvalidValue
from slime_events.core.config.trainer import TrainerSettings


def freeze(model: torch.nn.Module, settings: TrainerSettings) -> None:
    """Take the gradient from parameters that are not to be trained: neither optimizer nor checkpoint has a state of
    them then. Before the model is wrapped. Both lists: of the first, what the second does not name.

    Raises InvalidValue for an expression that is in no parameter's name, and where nothing is left to train.
    """
    only, frozen = settings.only_train_params_name_list, settings.freeze_params_name_list
    parameters = dict(named_parameters(model))
    for flag, expressions in (("--only-train-params-name-list", only), ("--freeze-params-name-list", frozen)):
        if idle := [one for one in expressions if not any(re.search(one, name) for name in parameters)]:
            names = dict.fromkeys(re.sub(r"\.\d+\.", ".N.", name) for name in parameters)
            raise InvalidValue(f"{flag} {' '.join(idle)}: in the name of no parameter. They are {', '.join(names)}")
    for name, parameter in parameters.items():
        if (only and not _named(name, only)) or _named(name, frozen):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise InvalidValue("--only-train-params-name-list and --freeze-params-name-list leave no parameter to train")


def _named(name: str, expressions: Sequence[str]) -> bool:
    return any(re.search(one, name) for one in expressions)

"""`by_class`: a user's class as a reward: `compute_reward(prompts, responses)` of one object in each process."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from schemas.errors import PlugPointError
from slime_events.plugins.loader import check_call, defined_at
from slime_events.plugins.sample import Sample

METHOD = "compute_reward"


def by_class(cls: type) -> Callable[..., Any]:
    """Return a class as grader function: `(args, sample) -> value`, and `(args, samples) -> values`.

    The function has the class's name and the digest of its source. A class without the method is returned unchanged.
    `function.make(args)` creates the object before the first call; its arguments are attributes of `args`. Raises
    PlugPointError if the method takes other arguments.
    """
    if not callable(method := getattr(cls, METHOD, None)):
        return cls
    check_call(method, "(self, prompts, responses)", 3)

    objects: list[Any] = []

    def make(args: object) -> Any:
        if not objects:
            objects.append(cls(**{name: getattr(args, name) for name in needs if hasattr(args, name)}))
        return objects[0]

    @functools.wraps(cls, updated=())
    def reward(args: object, samples: Sample | list[Sample]) -> Any:
        group = samples if isinstance(samples, list) else [samples]
        values = getattr(make(args), METHOD)([sample.prompt for sample in group], [sample.response for sample in group])
        return values if isinstance(samples, list) else values[0]

    parameters = inspect.signature(cls).parameters.values()
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needs = {item.name: item.default is inspect.Parameter.empty for item in parameters if item.kind in plain}
    vars(reward).update(__signature__=inspect.signature(lambda args, samples: None), make=make, needs=needs)
    return reward


def check_arguments(function: Callable[..., Any], args: object) -> None:
    """Raise PlugPointError if the constructor of a class needs a name that `args` does not have."""
    missed = [name for name, needed in getattr(function, "needs", {}).items() if needed and not hasattr(args, name)]
    if missed:
        raise PlugPointError(
            f"{function.__qualname__}{defined_at(function)} needs {', '.join(missed)}, which `args` does not have: add "
            "names with --custom-config-path FILE.yaml"
        )

"""`by_class`: a user's class as a reward: `compute_reward(prompts, responses)` of one object in each process."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from schemas.errors import PlugPointError
from slime_events.plugins.loader import check_call, defined_at

METHOD = "compute_reward"


def by_class(made_of: type) -> Callable[..., Any]:
    """`(args, sample) -> value`, and `(args, samples) -> values`, under the class's name and with the digest of its
    source; a class without that method as it is. `function.make(args)` makes the object, whose arguments are the names
    on `args`, before the first call does.

    Raises PlugPointError where the method takes something else.
    """
    if not callable(method := getattr(made_of, METHOD, None)):
        return made_of
    check_call(method, "(self, prompts, responses)", 3)

    objects: list[Any] = []

    def make(args: Any) -> Any:
        if not objects:
            objects.append(made_of(**{name: getattr(args, name) for name in needs if hasattr(args, name)}))
        return objects[0]

    @functools.wraps(made_of, updated=())
    def reward(args: Any, samples: Any) -> Any:
        asked = samples if isinstance(samples, list) else [samples]
        values = getattr(make(args), METHOD)([one.prompt for one in asked], [one.response for one in asked])
        return values if isinstance(samples, list) else values[0]

    parameters = inspect.signature(made_of).parameters.values()
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needs = {one.name: one.default is inspect.Parameter.empty for one in parameters if one.kind in plain}
    vars(reward).update(__signature__=inspect.signature(lambda args, samples: None), make=make, needs=needs)
    return reward


def check_arguments(function: Callable[..., Any], args: Any) -> None:
    """Raises PlugPointError where an object of a class would need what is not on `args`."""
    missed = [name for name, needed in getattr(function, "needs", {}).items() if needed and not hasattr(args, name)]
    if missed:
        raise PlugPointError(
            f"{function.__qualname__}{defined_at(function)} is made with {', '.join(missed)}, which `args` does not "
            "have: --custom-config-path FILE.yaml adds names"
        )

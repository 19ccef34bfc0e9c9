"""`SampleHook`: a user's `--rollout-sample-hook-path`, called with each generated sample before it is graded."""

import inspect
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from schemas.errors import PlugPointError
from schemas.text import raised_text, repr_text
from slime_events.plugins.loader import accepted, check_call, digest_of, load_function, name_of, place_of
from slime_events.plugins.sample import Sample


class SampleHook:
    """slime's signature `(args, sample, *, rollout_id=None, evaluation=False) -> Sample | None`, sync or async.

    As in slime it may leave the names out. rollout_id: the weight version that the rollout was asked of, which without
    staleness is its step. None stands for the sample that was given, changed or not. What the hook leaves is what
    `rollout.completed` holds.
    """

    def __init__(self, path: str, user_dir: str | Path) -> None:
        """Raises PlugPointMissing, NameTaken, PlugPointError (its import raised, or it cannot be called as it is)."""
        self._function = load_function(path, user_dir=user_dir)
        self.name, self.digest = name_of(self._function), digest_of(self._function)
        self._names = accepted(self._function, ("rollout_id", "evaluation"))
        check_call(self._function, "(args, sample)", 2, self._names, awaits=True)

    async def __call__(self, view: Any, made: Any, *, rollout_id: int | None, evaluation: bool) -> Any:
        """The sample, or the list of samples, that goes on. Raises PlugPointError where the hook does or returns
        something else.
        """
        if isinstance(made, list):
            return [await self(view, one, rollout_id=rollout_id, evaluation=evaluation) for one in made]
        try:
            offered = {"rollout_id": rollout_id, "evaluation": evaluation}
            returned = self._function(view, made, **{name: offered[name] for name in self._names})
            if inspect.isawaitable(returned):
                returned = await returned
        except Exception as error:
            raise PlugPointError(f"the sample hook {self.name} raised {raised_text(error)}{place_of(error)}") from error
        if returned is not None and not isinstance(returned, Sample):
            raise PlugPointError(
                f"the sample hook {self.name} returned {repr_text(returned)}: it returns a Sample or None"
            )
        return made if returned is None else returned


_CURRENT: ContextVar[int | None] = ContextVar("rollout_id", default=None)


def set_current_rollout_id(rollout_id: int | None) -> None:
    """What hooks are told by `apply_rollout_sample_hooks` from now on in this task or thread. A run tells its own hooks
    the rollout that they are called for.
    """
    _CURRENT.set(rollout_id)


async def apply_rollout_sample_hooks(args: Any, value: Any, **offered: Any) -> Any:
    """Each hook of `args.rollout_sample_hook_path` on a sample, or on each sample of a list, nested or not.

    offered: `rollout_id` and `evaluation`, for hooks that take them. Raises TypeError for another value, PlugPointError
    where a hook raises.
    """
    paths = getattr(args, "rollout_sample_hook_path", None) or []
    if paths and not isinstance(value, Sample | list):
        raise TypeError(f"rollout sample hooks take a Sample or a list of them, not {type(value).__name__}")
    rollout_id, evaluation = offered.get("rollout_id", _CURRENT.get()), bool(offered.get("evaluation"))
    for path in paths:
        value = await SampleHook(path, Path.cwd())(args, value, rollout_id=rollout_id, evaluation=evaluation)
    return value

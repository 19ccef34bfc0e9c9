"""`SampleHook`: a user's `--rollout-sample-hook-path`, called with each generated sample before it is graded."""

import inspect
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from schemas.errors import PlugPointError
from schemas.text import raised_text, repr_text
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import accepted, check_call, digest_of, load_function, name_of, place_of
from slime_events.plugins.sample import Sample


class SampleHook:
    """A function with slime's signature `(args, sample, *, rollout_id=None, evaluation=False) -> Sample | None`.

    It is sync or async and, as in slime, may leave out the keyword arguments. `rollout_id` is the requested weight
    version of the rollout, which is its step if there is no staleness. If the hook returns None, the sample that it was
    called with counts, changed or not. `rollout.completed` records the sample after the hook.
    """

    def __init__(self, path: str, user_dir: str | Path) -> None:
        """Raises PlugPointMissing, NameTaken, or PlugPointError if its import raises or it cannot be called."""
        self._function = load_function(path, user_dir=user_dir)
        self.name, self.digest = name_of(self._function), digest_of(self._function)
        self._names = accepted(self._function, ("rollout_id", "evaluation"))
        check_call(self._function, "(args, sample)", 2, self._names, awaits=True)

    async def __call__(
        self, view: ArgsView, result: Sample | list[Any], *, rollout_id: int | None, evaluation: bool
    ) -> Sample | list[Any]:
        """Return the sample or list of samples after the hook. Raises PlugPointError if the hook fails."""
        if isinstance(result, list):
            return [await self(view, item, rollout_id=rollout_id, evaluation=evaluation) for item in result]
        try:
            values = {"rollout_id": rollout_id, "evaluation": evaluation}
            returned = self._function(view, result, **{name: values[name] for name in self._names})
            if inspect.isawaitable(returned):
                returned = await returned
        except Exception as error:  # a user's hook may raise anything
            raise PlugPointError(f"the sample hook {self.name} raised {raised_text(error)}{place_of(error)}") from error
        if returned is not None and not isinstance(returned, Sample):
            raise PlugPointError(
                f"the sample hook {self.name} returned {repr_text(returned)}: it must return a Sample or None"
            )
        return result if returned is None else returned


_CURRENT: ContextVar[int | None] = ContextVar("rollout_id", default=None)


def set_current_rollout_id(rollout_id: int | None) -> None:
    """Set the rollout id that `apply_rollout_sample_hooks` passes to hooks, for this task or thread.

    A run passes the id of the rollout to its own hooks.
    """
    _CURRENT.set(rollout_id)


async def apply_rollout_sample_hooks(args: ArgsView, value: Any, **options: Any) -> Any:
    """Apply each hook of `args.rollout_sample_hook_path` to a sample, or to each sample of a list, nested or not.

    Hooks that accept them get `rollout_id` and `evaluation`. Raises TypeError for another value, PlugPointError if a
    hook raises.
    """
    paths = getattr(args, "rollout_sample_hook_path", None) or []
    if paths and not isinstance(value, Sample | list):
        raise TypeError(f"rollout sample hooks take a Sample or a list of them, not {type(value).__name__}")
    rollout_id, evaluation = options.get("rollout_id", _CURRENT.get()), bool(options.get("evaluation"))
    for path in paths:
        value = await SampleHook(path, Path.cwd())(args, value, rollout_id=rollout_id, evaluation=evaluation)
    return value

"""`GenerateFunction`: a user's generate function, as `--custom-generate-function-path` names it."""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path
from typing import Any

from schemas.errors import PlugPointError
from serve_apps.generate.session import CURRENT, Session
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import check_call, digest_of, load_function, name_of
from slime_events.plugins.sample import Sample

DEFAULT_NAMES = ("generate",)


class GenerateFunction:
    """slime's signature: `async (args, sample, sampling_params[, evaluation])`, and ours with `session` beside it."""

    def __init__(self, path: str, user_dir: str | Path) -> None:
        """Raises PlugPointMissing, NameTaken, PlugPointError (its import raised, or it is no coroutine function)."""
        self._function = load_function(path, default_names=DEFAULT_NAMES, user_dir=user_dir)
        self.name, self.digest = name_of(self._function), digest_of(self._function)
        if not inspect.iscoroutinefunction(self._function):
            raise PlugPointError(f"{self.name} has to be `async def`: it awaits its turns")
        names = inspect.signature(self._function).parameters
        self._optional = {name for name in ("evaluation", "session") if name in names}

    def check(self) -> None:
        """Raises PlugPointError where it cannot be called as it will be."""
        check_call(self._function, "(args, sample, sampling_params)", 3, self._optional)

    async def __call__(
        self, view: ArgsView, sample: Sample, sampling_params: dict[str, Any], *, evaluation: bool, session: Session
    ) -> Any:
        """What it returns. Whatever is raised in it comes out as it is."""
        offered = {"evaluation": evaluation, "session": session}
        CURRENT.set(session)
        return await self._function(
            view, sample, sampling_params, **{name: offered[name] for name in sorted(self._optional)}
        )

    def broke(self, error: BaseException) -> PlugPointError:
        """An exception of the function's, with where it was raised."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
        return PlugPointError(f"the generate function {self.name} raised {type(error).__name__}: {error}{where}")

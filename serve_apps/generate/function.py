"""A user's generate function: how it is loaded, what a replica needs to run it, and the thread it runs in."""

import asyncio
import contextlib
import inspect
import threading
import traceback
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from schemas.errors import PlugPointError
from serve_apps.generate.session import CURRENT, Session
from slime_events.core.config.settings import TrainSettings
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import check_call, digest_of, load_function, name_of
from slime_events.plugins.sample import Sample
from storage.cancellation import end_all


class GenerateFunction:
    """slime's signature: `async (args, sample, sampling_params[, evaluation])`, and optionally our `session`."""

    def __init__(self, path: str, user_dir: str | Path) -> None:
        """Raises PlugPointMissing, NameTaken, PlugPointError (its import raised, or it cannot be called as it is)."""
        self._function = load_function(path, default_names=("generate",), user_dir=user_dir)
        self.name, self.digest = name_of(self._function), digest_of(self._function)
        if not inspect.iscoroutinefunction(self._function):
            raise PlugPointError(f"{self.name} has to be `async def`: it awaits its turns")
        names = inspect.signature(self._function).parameters
        self._optional = [name for name in ("evaluation", "session") if name in names]
        check_call(self._function, "(args, sample, sampling_params)", 3, set(self._optional))

    async def __call__(
        self, view: ArgsView, sample: Sample, sampling_params: dict[str, Any], *, evaluation: bool, session: Session
    ) -> Any:
        """What it returns. Its exceptions are passed on as they are."""
        offered = {"evaluation": evaluation, "session": session}
        CURRENT.set(session)
        wanted = {name: offered[name] for name in self._optional}
        return await self._function(view, sample, sampling_params, **wanted)

    def error_of(self, error: BaseException) -> PlugPointError:
        """An exception of the function's, with the line that raised it."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
        return PlugPointError(f"the generate function {self.name} raised {type(error).__name__}: {error}{where}")


class GenerateSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica needs to run the function.

    user_dir: the folder that `path` is looked up in. timeout_s: seconds that the function may take for one rollout.
    args: what it sees as `args`. tokenizer: an HF folder.
    """

    path: str
    user_dir: str
    timeout_s: float
    args: dict[str, Any]
    tokenizer: str


def generate_setup(settings: TrainSettings) -> GenerateSetup | None:
    """The setup of --custom-generate-function-path; None where engines answer each prompt in one turn.

    Raises PlugPointError and its kinds.
    """
    path = settings.rollout.custom_generate_function_path
    if path is None:
        return None
    GenerateFunction(path, Path.cwd())  # so that a broken function ends the run before anything heavy starts
    return GenerateSetup(
        path=path,
        user_dir=str(Path.cwd()),
        timeout_s=settings.rollout.generate_timeout,
        args=ArgsView.of_run(settings).as_dict(),
        tokenizer=settings.engine.hf_checkpoint,
    )


class UserLoop:
    """An event loop in a thread of its own: a user's function that blocks does not stop leases, chunks or weights.

    threads: for tools that are no coroutines; one for each rollout in flight, so that no tool waits for another's
    within its time limit.
    """

    def __init__(self, threads: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(threads, "tool"))
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="generate", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # asyncio lets them out of a task and of its loop
                self._loop.run_forever()
        self._loop.close()

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Its result; a cancellation here cancels it there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        """Cancel what is still running in the thread and end it, without waiting for either."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    async def _end(self) -> None:
        await end_all(*asyncio.all_tasks() - {asyncio.current_task()})
        self._ended = True
        self._loop.stop()

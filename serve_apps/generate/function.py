"""A user's generate function: how it is loaded, what a replica needs to run it, and the thread it runs in."""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from schemas.errors import EngineError, PlugPointError
from schemas.text import raised_text
from serve_apps.generate.hooks import SampleHook
from serve_apps.generate.session import CURRENT, Session
from serve_apps.rollout import Suspended
from slime_events.core.config.settings import TrainSettings
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import check_call, defined_at, digest_of, load_function, name_of, place_of
from slime_events.plugins.sample import Sample
from storage.cancellation import end_all

T = TypeVar("T")


class GenerateFunction:
    """slime's signature: `async (args, sample, sampling_params[, evaluation])`, and optionally our `session`.

    hooks: called with what it returns. code: names of it and its hooks, and the sha256 of their sources.
    """

    def __init__(self, path: str, user_dir: str | Path, hooks: Sequence[SampleHook] = ()) -> None:
        """Raises PlugPointMissing, NameTaken, PlugPointError (its import raised, or it cannot be called as it is)."""
        self._function = load_function(path, default_names=("generate",), user_dir=user_dir)
        self.name, self.digest = name_of(self._function), digest_of(self._function)
        self._hooks = hooks
        self.code = {self.name: self.digest} | {hook.name: hook.digest for hook in hooks}
        names = inspect.signature(self._function).parameters
        self._optional = [name for name in ("evaluation", "session") if name in names]
        check_call(self._function, "(args, sample, sampling_params)", 3, set(self._optional), awaits=True)
        if not inspect.iscoroutinefunction(self._function):
            raise PlugPointError(
                f"{self.name.partition(':')[2]}{defined_at(self._function)} has to be `async def`: it awaits its turns"
            )

    async def __call__(
        self,
        view: ArgsView,
        sample: Sample,
        sampling_params: dict[str, Any],
        *,
        rollout_id: int,
        evaluation: bool,
        session: Session,
    ) -> Any:
        """What it returns, and its hooks make of that. Its exceptions are passed on as they are; a SystemExit and the
        like, which would end more than this rollout, as PlugPointError.
        """
        offered = {"evaluation": evaluation, "session": session}
        CURRENT.set(session)
        wanted = {name: offered[name] for name in self._optional}
        try:
            made = await self._function(view, sample, sampling_params, **wanted)
            for hook in self._hooks:
                made = await hook(view, made, rollout_id=rollout_id, evaluation=evaluation)
        except (Exception, asyncio.CancelledError, Suspended):
            raise
        except BaseException as error:
            raise self.error_of(error) from error
        return made

    def error_of(self, error: BaseException, refused: PlugPointError | None = None) -> PlugPointError:
        """An exception of the function's, with the line that raised it. refused: why the engine refused a request
        before, of which a client of the function's own saw a status.
        """
        raised = f"{raised_text(error)}{place_of(error)}"
        before = "" if refused is None else f"; before, a request to its engine was refused: {refused}"
        return PlugPointError(f"the generate function {self.name} raised {raised}{before}")


class GenerateSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica needs to run the functions.

    path: of the run's generate function; empty where an engine answers a prompt in one turn, but for prompts that name
    a function of their own. hooks: paths. user_dir: the folder that they are looked up in. timeout_s: seconds that a
    function may take for one rollout. args: what it sees as `args`. tokenizer: an HF folder.
    """

    path: str
    user_dir: str
    timeout_s: float
    args: dict[str, Any]
    tokenizer: str
    hooks: tuple[str, ...] = ()


DEFAULT = "slime.rollout.sglang_rollout.generate"
"""slime's own: one turn. It makes what hooks are called with where the run has no generate function."""


def generate_setup(settings: TrainSettings) -> GenerateSetup | None:
    """The setup of generate functions and sample hooks; None where engines answer each prompt in one turn.

    Raises PlugPointError and its kinds.
    """
    rollout = settings.rollout
    path, hooks = rollout.custom_generate_function_path or "", tuple(rollout.rollout_sample_hook_path)
    may_name_one = settings.data.data_source_path or settings.evaluation.has_functions  # for a prompt
    if not (path or hooks or may_name_one):
        return None
    if path := path or (DEFAULT if hooks else ""):  # so that a broken one ends the run before anything heavy starts
        GenerateFunction(path, Path.cwd(), [SampleHook(hook, Path.cwd()) for hook in hooks])
    return GenerateSetup(
        path=path,
        user_dir=str(Path.cwd()),
        timeout_s=rollout.generate_timeout,
        args=ArgsView.of_run(settings).as_dict(),
        tokenizer=settings.engine.hf_checkpoint,
        hooks=hooks,
    )


class UserLoop:
    """An event loop in a thread of its own: a user's function that blocks does not stop leases, chunks or weights.

    threads: for tools that are no coroutines; one for each rollout in flight, so that no tool waits for another's
    within its time limit. name: of the thread.
    """

    def __init__(self, threads: int, name: str = "generate") -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(threads, "tool"))
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # asyncio lets them out of a task and of its loop
                self._loop.run_forever()
        self._loop.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result; a cancellation here cancels it there."""
        return await asyncio.wrap_future(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it; for any thread. Raises EngineError where the thread has ended."""
        if self._ended:
            work.close()
            raise EngineError(f"the thread {self._thread.name!r} of the engine has ended")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Cancel what is still running in the thread and end it, without waiting for either."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    async def _end(self) -> None:
        await end_all(*asyncio.all_tasks() - {asyncio.current_task()})
        self._ended = True
        self._loop.stop()

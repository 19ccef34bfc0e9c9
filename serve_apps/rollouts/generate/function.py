"""A user's generate function: how to load it, the setup that a replica needs to run it, and the thread it runs in."""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from schemas.doc import doc
from schemas.errors import EngineError, PlugPointError
from schemas.text import raised_text
from serve_apps.rollouts.generate.hooks import SampleHook
from serve_apps.rollouts.generate.session import CURRENT, Session
from serve_apps.rollouts.rollout import Suspended
from slime_events.core.config.settings import TrainSettings
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import check_call, defined_at, digest_of, load_function, name_of, place_of
from slime_events.plugins.sample import Sample
from storage.cancellation import end_all

T = TypeVar("T")


class GenerateFunction:
    """A function with slime's signature `async (args, sample, sampling_params[, evaluation])`, and optionally our
    `session`.

    `hooks` are called with its result. `code` has the names of the function and its hooks, with the sha256 (hex) of
    their sources.
    """

    def __init__(self, path: str, user_dir: str | Path, hooks: Sequence[SampleHook] = ()) -> None:
        """Raises PlugPointMissing, NameTaken, or PlugPointError if its import raises or it cannot be called."""
        self._function = load_function(path, default_names=("generate",), user_dir=user_dir)
        self.name, self.digest = name_of(self._function), digest_of(self._function)
        self._hooks = hooks
        self.code = {self.name: self.digest} | {hook.name: hook.digest for hook in hooks}
        names = inspect.signature(self._function).parameters
        self._optional = [name for name in ("evaluation", "session") if name in names]
        check_call(self._function, "(args, sample, sampling_params)", 3, set(self._optional), awaits=True)
        if not inspect.iscoroutinefunction(self._function):
            raise PlugPointError(
                f"{self.name.partition(':')[2]}{defined_at(self._function)} must be `async def`: it awaits its turns"
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
        """Return the function's result after its hooks.

        The function's exceptions are passed on unchanged. A SystemExit and similar, which would end more than this
        rollout, become PlugPointError.
        """
        values = {"evaluation": evaluation, "session": session}
        CURRENT.set(session)
        optional = {name: values[name] for name in self._optional}
        try:
            result = await self._function(view, sample, sampling_params, **optional)
            for hook in self._hooks:
                result = await hook(view, result, rollout_id=rollout_id, evaluation=evaluation)
        except (Exception, asyncio.CancelledError, Suspended):  # these end only this rollout
            raise
        except BaseException as error:  # SystemExit and similar would end the engine
            raise self.error_of(error) from error
        return result

    def error_of(self, error: BaseException, refused: PlugPointError | None = None) -> PlugPointError:
        """Return the error for an exception of the function, with the line that raised it.

        `refused` is the reason why the engine refused an earlier request: the function's HTTP client saw only a status.
        """
        raised = f"{raised_text(error)}{place_of(error)}"
        before = "" if refused is None else f"; before, a request to its engine was refused: {refused}"
        return PlugPointError(f"the generate function {self.name} raised {raised}{before}")


class GenerateSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Setup that a replica needs to run the functions."""

    path: Annotated[
        str,
        doc(
            "The run's generate function. Empty if engines answer each prompt in one turn, except prompts that name a "
            "function."
        ),
    ]
    user_dir: Annotated[str, doc("Folder of relative paths.")]
    timeout_s: Annotated[float, doc("Time limit of a function for one rollout [s].")]
    args: Annotated[dict[str, Any], doc("Attributes of the function's `args`.")]
    tokenizer: Annotated[str, doc("HF folder.")]
    hooks: Annotated[tuple[str, ...], doc("Paths of sample hooks.")] = ()


DEFAULT = "slime.rollout.sglang_rollout.generate"
"""slime's own function: one turn. It makes the samples for hooks if the run has no generate function."""


def generate_setup(settings: TrainSettings, models: Mapping[str, str] | None = None) -> GenerateSetup | None:
    """Return the setup of generate functions and sample hooks; None if engines answer each prompt in one turn.

    models: addresses of other models by name.

    Raises PlugPointError and its subclasses.
    """
    rollout = settings.rollout
    path, hooks = rollout.custom_generate_function_path or "", tuple(rollout.rollout_sample_hook_path)
    may_name_one = settings.data.data_source_path or settings.evaluation.has_functions  # a prompt may name a function
    if not (path or hooks or may_name_one):
        return None
    if path := path or (DEFAULT if hooks else ""):  # loads it early: a broken function ends the run now
        GenerateFunction(path, Path.cwd(), [SampleHook(hook, Path.cwd()) for hook in hooks])
    return GenerateSetup(
        path=path,
        user_dir=str(Path.cwd()),
        timeout_s=rollout.generate_timeout,
        args=ArgsView.of_run(settings, models).as_dict(),
        tokenizer=settings.engine.hf_checkpoint,
        hooks=hooks,
    )


class UserLoop:
    """An event loop in its own thread: a user's function that blocks does not delay leases, chunks or weights.

    `threads` run tools that are not coroutines: one for each rollout in flight, so that no tool waits for another
    within its time limit. `name` is the thread's.
    """

    def __init__(self, threads: int, name: str = "generate") -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(threads, "tool"))
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # asyncio passes these on
                self._loop.run_forever()
        self._loop.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result. Cancelling this call cancels the work."""
        return await asyncio.wrap_future(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the work, from any thread. Raises EngineError if the loop's thread has ended."""
        if self._ended:
            work.close()
            raise EngineError(f"the thread {self._thread.name!r} of the engine has ended")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Cancel the work in progress and end the thread, without waiting for either."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    async def _end(self) -> None:
        await end_all(*asyncio.all_tasks() - {asyncio.current_task()})
        self._ended = True
        self._loop.stop()

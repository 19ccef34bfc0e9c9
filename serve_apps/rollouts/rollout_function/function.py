"""`RolloutFunction`: a user's `--rollout-function-path` or `--eval-function-path`, and the thread it is called in."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from schemas.errors import PlugPointError
from schemas.text import raised_text
from serve_apps.rollouts.generate.hooks import set_current_rollout_id
from serve_apps.rollouts.generate.session import CURRENT, Session
from serve_apps.rollouts.rollout_function.data_source import DrawnGroups
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import check_call, digest_of, load_function, name_of, place_of
from slime_events.plugins.rollout_types import call_rollout_fn
from slime_events.plugins.slime.helpers import run

T = TypeVar("T")
ROLLOUT, EVALUATION = "--rollout-function-path", "--eval-function-path"


class RolloutFunction:
    """A function with slime's signature `(args, rollout_id, data_source, evaluation=False)`, sync or async.

    `name` and `digest` identify it in events.
    """

    def __init__(self, flag: str, path: str) -> None:
        """Raises PlugPointMissing, NameTaken, or PlugPointError if it cannot be called."""
        self.flag, self._function = flag, load_function(path, default_names=("generate_rollout",))
        self.name, self.digest = name_of(self._function), digest_of(self._function)
        check_call(self._function, "(args, rollout_id, data_source, evaluation=...)", 3, {"evaluation"}, awaits=True)

    async def __call__(
        self, args: ArgsView, rollout_id: int, data_source: DrawnGroups, session: Session, *, evaluation: bool
    ) -> Any:
        """Return a RolloutFnTrainOutput or RolloutFnEvalOutput. Raises PlugPointError if the function raises."""

        def called() -> object:
            CURRENT.set(session)
            set_current_rollout_id(rollout_id)
            try:
                return call_rollout_fn(self._awaited, args, rollout_id, data_source, evaluation=evaluation)
            except BaseException as error:  # a user's function may raise anything
                what = f"raised {raised_text(error)}{place_of(error)}"
                raise self.error(rollout_id, what, evaluation=evaluation) from error

        return await in_daemon(called, f"rollout-function-{rollout_id}")

    def error(self, rollout_id: int, what: str, *, evaluation: bool) -> PlugPointError:
        """Return the error for a call of the function. `what` describes the fault."""
        call = f"the evaluation of v{rollout_id}" if evaluation else f"step {rollout_id}"
        return PlugPointError(f"{self.flag}: {self.name} {what}, called for {call}")

    def _awaited(self, *arguments: object, evaluation: bool) -> object:
        result = self._function(*arguments, evaluation=evaluation)
        return run(_value_of(result)) if inspect.isawaitable(result) else result


async def _value_of(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def in_daemon(call: Callable[[], Any], name: str) -> Any:
    """Return the result of the call, made in a thread that does not keep the process alive."""
    loop, result = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def settle(set_it: Callable[[Any], None], value: object) -> None:
        if not result.done():
            set_it(value)

    def work() -> None:
        try:
            settled, value = result.set_result, call()
        except BaseException as error:  # passed on to the caller's loop
            settled, value = result.set_exception, error
        with suppress(RuntimeError):  # the loop has ended: the result is no longer needed
            loop.call_soon_threadsafe(settle, settled, value)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await result

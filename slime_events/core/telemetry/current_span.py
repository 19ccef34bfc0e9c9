"""`in_span`: the span that the current task works on. The process log has its ids at each record of the task."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from slime_events.core.telemetry.span import SpanContext, span_id
from slime_events.core.telemetry.span_place import SpanPlace

T = TypeVar("T")


@dataclass(slots=True)
class _Work:
    context: SpanContext
    is_over: bool = False


_current: ContextVar[_Work | None] = ContextVar("span", default=None)


@contextmanager
def in_span(run: str, place: SpanPlace) -> Iterator[None]:
    """Set the current span of this task, of tasks that it creates, and of its calls in threads, until the context ends.

    The span itself is exported with the event that ends it, whose ids are known before.
    """
    work = _Work(SpanContext(place.trace(run), span_id(run, place.key)))
    token = _current.set(work)
    try:
        yield
    finally:
        # A task that was created in this context has a copy of the variable, and may outlive the work.
        work.is_over = True
        _current.reset(token)


async def call_in_span(run: str, place: SpanPlace, function: Callable[[], Awaitable[T]]) -> T:
    """Call a function in `in_span`, for a task of its own."""
    with in_span(run, place):
        return await function()


def current_span() -> SpanContext | None:
    """Return the ids of the span that this task works on; None if there is none, or if the work is over."""
    work = _current.get()
    return None if work is None or work.is_over else work.context

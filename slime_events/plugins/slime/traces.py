"""slime's `trace_utils`: spans that a user's function records on a sample, in `sample.trace`.

A run rebuilds its own traces from the log; these spans are for the function that records them.
"""

import contextlib
import functools
import inspect
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast

from slime_events.plugins.sample import Sample

P = ParamSpec("P")
R = TypeVar("R")
_OPEN: ContextVar[tuple[str, ...]] = ContextVar("spans", default=())
_META = ("prompt_tokens", "completion_tokens", "cached_tokens")


class TraceSpan:
    """An open span. `attrs` are the attributes of its end."""

    def __init__(self) -> None:
        self.attrs: dict[str, Any] = {}

    def set(self, key: str, value: object) -> "TraceSpan":
        """Set an attribute."""
        self.attrs[key] = value
        return self

    def update(self, attrs: dict[str, Any] | None) -> "TraceSpan":
        """Set several attributes."""
        self.attrs.update(attrs or {})
        return self

    set_attr, update_attrs = set, update


def bind_trace(sample: Sample) -> dict[str, Any]:
    """Return the sample's trace: `trace_id`, and `events` in order. A sample without a trace gets a new one."""
    if sample.trace is None:
        sample.trace = {"version": 1, "trace_id": uuid.uuid4().hex, "attempt": 0, "events": []}
    sample.trace |= {"sample_id": sample.index, "group_id": sample.group_index}
    return sample.trace


def trace_event(target: object, name: str, *, attrs: dict[str, Any] | None = None) -> None:
    """Record an event on a sample, or on each sample of a list."""
    _note(target, "event", name, attrs)


@contextlib.contextmanager
def trace_span(
    target: object, name: str, *, attrs: dict[str, Any] | None = None, record_error: bool = True
) -> Iterator[TraceSpan]:
    """Record a span around the block, on a sample or on each sample of a list.

    With `record_error` an exception becomes attributes of the span.
    """
    span, span_id, before = TraceSpan(), uuid.uuid4().hex, _OPEN.get()
    ids = {"span_id": span_id, "parent_span_id": before[-1] if before else None}
    _note(target, "span_start", name, attrs, **ids)
    token = _OPEN.set((*before, span_id))
    try:
        yield span
    except Exception as error:  # recorded on the span, then raised again
        if record_error:
            span.update({"error_type": type(error).__name__, "error_message": str(error)})
        raise
    finally:
        _OPEN.reset(token)
        _note(target, "span_end", name, span.attrs, span_id=span_id)


def trace_function(
    name: str, *, target: str = "sample", attrs_getter: Callable[..., dict[str, Any]] | None = None, **_: object
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Record a span around each call of the decorated function. `target` is its argument with the sample."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        def around(*args: P.args, **kwargs: P.kwargs) -> contextlib.AbstractContextManager[TraceSpan]:
            attrs = attrs_getter(*args, **kwargs) if attrs_getter else None
            return trace_span(signature.bind(*args, **kwargs).arguments.get(target), name, attrs=attrs)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with around(*args, **kwargs):
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def call_async(*args: P.args, **kwargs: P.kwargs) -> object:
            with around(*args, **kwargs):
                return await cast(Awaitable[object], function(*args, **kwargs))

        return cast(Callable[P, R], call_async) if inspect.iscoroutinefunction(function) else call

    return decorate


def build_sglang_meta_trace_attrs(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the span attributes of an engine's `meta_info`."""
    attrs = {key: meta[key] for key in _META if meta.get(key) is not None}
    if meta.get("id") is not None:
        attrs["sglang_request_id"] = meta["id"]
    return attrs | {"finish_reason": (meta.get("finish_reason") or {}).get("type")}


def _note(target: object, kind: str, name: str, attrs: dict[str, Any] | None, **ids: str | None) -> None:
    for item in target if isinstance(target, list) else [target]:
        if isinstance(item, list):
            _note(item, kind, name, attrs, **ids)
        elif isinstance(item, Sample):
            event = {"type": kind, "name": name, "ts": time.time(), **ids}
            bind_trace(item)["events"].append(event | ({"attrs": dict(attrs)} if attrs else {}))

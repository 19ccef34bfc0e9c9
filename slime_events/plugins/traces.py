"""slime's `trace_utils`: spans that a user's function notes on a sample, in `sample.trace`.

A run's own traces are rebuilt from its log; these are for the function that makes them.
"""

import contextlib
import functools
import inspect
import time
import uuid
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from slime_events.plugins.sample import Sample

_OPEN: ContextVar[tuple[str, ...]] = ContextVar("spans", default=())
_META = ("prompt_tokens", "completion_tokens", "cached_tokens")


class TraceSpan:
    """An open span. attrs: of its end."""

    def __init__(self) -> None:
        self.attrs: dict[str, Any] = {}

    def set(self, key: str, value: Any) -> "TraceSpan":
        """One more attribute."""
        self.attrs[key] = value
        return self

    def update(self, attrs: dict[str, Any] | None) -> "TraceSpan":
        """More attributes."""
        self.attrs.update(attrs or {})
        return self

    set_attr, update_attrs = set, update


def bind_trace(sample: Sample) -> dict[str, Any]:
    """The sample's trace, which it gets if it has none: `trace_id`, and `events` in order."""
    if sample.trace is None:
        sample.trace = {"version": 1, "trace_id": uuid.uuid4().hex, "attempt": 0, "events": []}
    sample.trace |= {"sample_id": sample.index, "group_id": sample.group_index}
    return sample.trace


def trace_event(target: Any, name: str, *, attrs: dict[str, Any] | None = None) -> None:
    """Something that happened to a sample, or to each of a list."""
    _note(target, "event", name, attrs)


@contextlib.contextmanager
def trace_span(
    target: Any, name: str, *, attrs: dict[str, Any] | None = None, record_error: bool = True
) -> Iterator[TraceSpan]:
    """A span around the block, on a sample or each of a list. record_error: what it raises becomes attributes."""
    span, span_id, before = TraceSpan(), uuid.uuid4().hex, _OPEN.get()
    ids = {"span_id": span_id, "parent_span_id": before[-1] if before else None}
    _note(target, "span_start", name, attrs, **ids)
    token = _OPEN.set((*before, span_id))
    try:
        yield span
    except Exception as error:
        if record_error:
            span.update({"error_type": type(error).__name__, "error_message": str(error)})
        raise
    finally:
        _OPEN.reset(token)
        _note(target, "span_end", name, span.attrs, span_id=span_id)


def trace_function(
    name: str, *, target: str = "sample", attrs_getter: Callable[..., dict[str, Any]] | None = None, **_: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A span around each call of the decorated function. target: its argument that is the sample."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        def around(args: Any, kwargs: Any) -> contextlib.AbstractContextManager[TraceSpan]:
            attrs = attrs_getter(*args, **kwargs) if attrs_getter else None
            return trace_span(signature.bind(*args, **kwargs).arguments.get(target), name, attrs=attrs)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with around(args, kwargs):
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with around(args, kwargs):
                return await function(*args, **kwargs)

        return call_async if inspect.iscoroutinefunction(function) else call

    return decorate


def build_sglang_meta_trace_attrs(meta: dict[str, Any]) -> dict[str, Any]:
    """What is worth keeping of an engine's `meta_info`."""
    attrs = {key: meta[key] for key in _META if meta.get(key) is not None}
    if meta.get("id") is not None:
        attrs["sglang_request_id"] = meta["id"]
    return attrs | {"finish_reason": (meta.get("finish_reason") or {}).get("type")}


def _note(target: Any, kind: str, name: str, attrs: dict[str, Any] | None, **ids: Any) -> None:
    for one in target if isinstance(target, list) else [target]:
        if isinstance(one, list):
            _note(one, kind, name, attrs, **ids)
        elif isinstance(one, Sample):
            event = {"type": kind, "name": name, "ts": time.time(), **ids}
            bind_trace(one)["events"].append(event | ({"attrs": dict(attrs)} if attrs else {}))

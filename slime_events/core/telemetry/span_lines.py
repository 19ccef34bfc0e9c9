"""`span_lines`: spans as lines of a file, in OTLP's JSON encoding: ids in hex, 64-bit numbers as text.

A live process writes a line per span, so it is done by one encoder call for the values of a span and one format, which
is made once for all spans with the same attributes: half the time of an object for each attribute.
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from slime_events.core.telemetry.span import Attribute, Span

_PRODUCER = 4
"""OTLP's kind of span for a producer of messages."""
_ERROR = 2
"""OTLP's status code of a failure."""
_FORMATS: dict[type, bytes] = {
    str: b'{"stringValue":%b}',
    bool: b'{"boolValue":%b}',
    int: b'{"intValue":"%b"}',
    float: b'{"doubleValue":%b}',
}
"""Type of a value to the format of its object. The format takes the value in JSON."""
_encoder = msgspec.json.Encoder()


class _Line(NamedTuple):
    """The format of a span's line."""

    format: bytes
    others: tuple[int, ...]
    """Indices of the values whose object is made apart: sequences and subclasses."""


def span_lines(spans: Iterable[Span]) -> bytes:
    """Return a line for each span."""
    return b"".join(map(_line, spans))


def _line(span: Span) -> bytes:
    values: list[Attribute | msgspec.Raw] = [*span.attributes.values()]
    form, others = _line_of(span.name, tuple(span.attributes), tuple(map(type, values)))
    for index in others:
        values[index] = msgspec.Raw(_object(values[index]))
    encoded = _encoder.encode_lines(values).split(b"\n")  # a line break in a text is \n in JSON
    encoded[-1] = _end(span)  # it was empty: what follows the last line break
    return form % (span.trace, span.span, span.start_ns, span.end_ns, *encoded)


@functools.lru_cache(1024)
def _line_of(name: str, attributes: tuple[str, ...], types: tuple[type, ...]) -> _Line:
    """Return the format of the lines of spans with this name and attributes of these types, in this order."""
    objects = b",".join(
        b'{"key":%b,"value":%b}' % (_text(attribute), _FORMATS.get(kind, b"%b"))
        for attribute, kind in zip(attributes, types, strict=True)
    )
    begin = b'{"traceId":"%032x","spanId":"%016x","name":' + _text(name) + b',"kind":' + str(_PRODUCER).encode()
    times = b',"startTimeUnixNano":"%d","endTimeUnixNano":"%d"'
    others = tuple(index for index, kind in enumerate(types) if kind not in _FORMATS)
    return _Line(begin + times + b',"attributes":[' + objects + b"]%b}\n", others)


def _text(text: str) -> bytes:
    """Return a text in JSON, as a part of a format."""
    return _encoder.encode(text).replace(b"%", b"%%")


def _object(value: Attribute | msgspec.Raw) -> bytes:
    """Return the object of a value that has not exactly a type of `_FORMATS`."""
    if isinstance(value, list | tuple):
        return _array(tuple(value), type(value[0]).__name__ if value else "")
    for kind, form in _FORMATS.items():
        if isinstance(value, kind):
            return form % _encoder.encode(kind(value))
    raise TypeError(f"{value!r} cannot be the value of an attribute")


@functools.lru_cache(1024)
def _array(items: tuple[str, ...] | tuple[int, ...], kind: str) -> bytes:
    """Return the object of a sequence. kind: type of the items, because 1 and True are the same to the cache."""
    return b'{"arrayValue":{"values":[' + b",".join(map(_object, items)) + b"]}}"


def _end(span: Span) -> bytes:
    """Return the fields behind the attributes, which not every span has."""
    end = b"" if span.parent is None else b',"parentSpanId":"%016x"' % span.parent
    if span.links:
        end += b',"links":[' + b",".join(b'{"traceId":"%032x","spanId":"%016x"}' % link for link in span.links) + b"]"
    if span.error is not None:
        end += b',"status":{"code":%d,"message":%b}' % (_ERROR, _encoder.encode(span.error))
    return end

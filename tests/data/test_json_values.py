"""Values as the log carries them, and the words for those that it cannot: of a row, of a line, of a message."""

from __future__ import annotations

import codecs
import json
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.inbox import FieldError, InboxPrompt
from schemas.outside import OutsideReward
from slime_events.loop.prompts.inbox_message import WrongField, as_carried, field_error, read_message
from slime_events.loop.prompts.json_line import (
    EXPLAINED,
    BadField,
    deep_field,
    fields_of,
    kind_of,
    reason_of,
    why_not,
    without_mark,
)
from slime_events.loop.prompts.json_value import DEPTH, BadValue, is_stored, json_value, label_value
from storage.log import MAX_BATCH


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "another"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (False, False),
        (0, 0),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (1.5, 1.5),
        ("a", "a"),
        ("\ud83d", "\N{REPLACEMENT CHARACTER}"),
        (Text("a"), "a"),
        ((1, (2,)), [1, [2]]),
        ({"a": [None, {Text("b"): 1}]}, {"a": [None, {"b": 1}]}),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.array([[1, 2]]), [[1, 2]]),
    ],
)
def test_values(value: Any, expected: Any) -> None:
    assert json_value(value, "f") == expected
    assert type(json_value(value, "f")) is type(expected)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (2**63, "f"),
        (-(2**63) - 1, "f"),
        ({1: "a"}, "f"),
        ({"a": [0, {"b": object()}]}, "f.a[1].b"),
        ([b"a"], "f[0]"),
        ({"a": {2: 3}}, "f.a"),
        (object, "f"),
    ],
)
def test_values_that_the_log_has_no_room_for(value: Any, field: str) -> None:
    with pytest.raises(BadValue) as error:
        json_value(value, "f")
    assert error.value.field == field
    assert error.value.message in str(error.value)


@pytest.mark.parametrize(("value", "digits"), [(10**30, 31), (-(10**40), 41)])
def test_the_digits_of_a_long_integer_are_counted(value: int, digits: int) -> None:
    with pytest.raises(BadValue) as error:
        json_value(value, "f")
    assert f"some {digits} digits" in error.value.message


def nested(levels: int, value: Any = 1) -> Any:
    for number in range(levels):
        value = {"a": value} if number % 2 else [value]
    return value


def test_how_deep_a_value_may_be() -> None:
    assert json_value(nested(DEPTH), "f") == nested(DEPTH)
    with pytest.raises(BadValue):
        json_value(nested(DEPTH + 1), "f")
    assert json_value(nested(DEPTH - 2, np.array([1])), "f") == nested(DEPTH - 2, [1])
    assert json_value(nested(DEPTH - 1, np.array(1)), "f") == nested(DEPTH - 1)
    with pytest.raises(BadValue):
        json_value(nested(DEPTH, np.array(1)), "f")


def test_a_label_may_have_more_digits() -> None:
    assert (label_value(2**63, "a"), label_value(-(2**63) - 1, "a")) == (str(2**63), str(-(2**63) - 1))
    assert (label_value(2**63 - 1, "a"), label_value("x", "a"), label_value(True, "a")) == (2**63 - 1, "x", True)
    for value in (10**5000, {"n": 2**63}):
        with pytest.raises(BadValue):
            label_value(value, "a")
    assert [is_stored(value) for value in (2**63, 2**63 - 1, -(2**63), -(2**63) - 1)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (b'{"a": 1, "b": [2]}', {"a": 1, "b": [2]}),
        (b'{"a": 1, "b": "\xff"}', BadField("b", "")),
        (b'{"a": 1e999, "b": "\xff"}', BadField("a", "")),
        (b'{"a": 1, "b": %s}' % (b"[" * 2000 + b"]" * 2000), BadField("b", "")),
        (b'{"a": ', BadField("", "")),
        (b"[1]", BadField("", "")),
    ],
)
def test_the_fields_of_a_line(line: bytes, read: dict[str, Any] | BadField) -> None:
    fields = fields_of(line)
    if isinstance(read, dict):
        assert fields == read
    else:
        assert isinstance(fields, BadField)
        assert fields.field == read.field
        assert str(fields) == (f"{fields.field!r} {fields.message}" if fields.field else fields.message)


def test_fields_that_nobody_reads_are_left_out() -> None:
    line = b'{"a": 1, "b": "\xff", "c": 1e999}'
    assert fields_of(line, ["a"]) == {"a": 1}
    assert fields_of(line, []) == {"a": 1}
    bad_field = fields_of(line, ["c"])
    assert isinstance(bad_field, BadField)
    assert bad_field.field == "c"


def why(line: bytes) -> str:
    return why_not(line, ValueError("the reason - at `$.a`"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": NaN}', "NaN"),
        (b'{"a": [1, -Infinity, NaN]}', "-Infinity"),
        (b'{"a": 1}\r{"b": 2}', "tr '\\r' '\\n'"),
        (b'{"a": "b", "c": "\\ud83d"}', "'c'"),
        (b'{"a": "b", "\\ud83d": 1}', "\\ud83d"),
        (b'{"a": {"b": ["\\ud83d"]}}', "'a'"),
    ],
)
def test_a_better_reason_than_the_decoders(line: bytes, reason: str) -> None:
    assert reason in why(line).replace("; the reason", "")
    assert "the reason" in why(line)
    assert "$" not in why(line)


@pytest.mark.parametrize("line", [b'{"a": 1}', b"{", b'["\\ud83d"]', b'{"a": "b"}\r', b"[" * 100_000, b"\xff"])
def test_the_decoders_reason_where_there_is_no_better(line: bytes) -> None:
    assert why(line) == "the reason"
    assert reason_of(ValueError("plain")) == "plain"


def test_a_line_of_megabytes_is_not_read_again_for_a_reason() -> None:
    long = b'{"a": NaN, "b": "' + b"x" * EXPLAINED + b'"}'
    assert "NaN" not in why(long)
    assert "NaN" in why(long[:20] + b'"}' + b" " * (EXPLAINED - 22))


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b'{"a": 1, "b": %s, "c": 2}', "b"),
        (b'{"a": {"b": [1, 2]}, "c": "d", "e" : %s}', "e"),
        (b'{"a": "{[\\"[[", "b": ["c", {"d": %s}]}', "b"),
        (b'{"a": [[]], "b": {"c": {}}, "d": [%s]}', "d"),
    ],
)
def test_the_field_that_is_nested_too_deeply(line: bytes, field: str) -> None:
    assert deep_field(line % (b"[" * 64 + b"]" * 64)) == field
    assert deep_field(line % b"[]") == ""


def test_how_deep_a_field_may_be() -> None:
    assert [deep_field(b'{"a": %s}' % (b"[" * count + b"]" * count)) for count in (63, 64)] == ["", "a"]
    assert deep_field(b'{"a": [[1]]}', 2) == "a"
    assert deep_field(b'{"a": [1]}', 2) == ""


@pytest.mark.parametrize(
    ("head", "kind", "advice"),
    [
        (codecs.BOM_UTF32_LE, "UTF-32", "iconv -f UTF-32 -t UTF-8"),
        (codecs.BOM_UTF32_BE, "UTF-32", "iconv -f UTF-32 -t UTF-8"),
        (codecs.BOM_UTF16_LE, "UTF-16", "iconv -f UTF-16 -t UTF-8"),
        (codecs.BOM_UTF16_BE, "UTF-16", "iconv -f UTF-16 -t UTF-8"),
        (b"\x1f\x8b", "gzip", ".jsonl.gz"),
        (b"\x28\xb5\x2f\xfd", "zstd", ".jsonl.zst"),
        (b"PAR1", "Parquet", ".parquet"),
    ],
)
def test_what_is_no_text_is_named(head: bytes, kind: str, advice: str) -> None:
    message = kind_of(head + b"ab")
    assert message is not None
    assert kind in message
    assert advice in message
    assert kind_of(b"a" + head) is None


def test_a_mark_is_no_part_of_a_line() -> None:
    assert without_mark(codecs.BOM_UTF8 + b"{}") == without_mark(b"{}") == b"{}"
    assert kind_of(codecs.BOM_UTF8 + b"{}") is kind_of(b"") is None


def read(data: bytes, kind: type[Any] = InboxPrompt) -> tuple[list[tuple[int, Any]], list[tuple[int, str]]]:
    items, errors = read_message(data, kind)
    assert all(error.message for error in errors)
    return items, [(error.index, error.field) for error in errors]


def test_a_message_is_one_item_or_a_list() -> None:
    message = b'{"key": "k", "prompt": "p"}'
    item = InboxPrompt(key="k", prompt="p")
    assert read(message) == read(codecs.BOM_UTF8 + message) == read(b" \n" + message) == ([(0, item)], [])
    assert read(b" [%s, %s]" % (message, message)) == ([(0, item), (1, item)], [])
    assert read(b"[]") == ([], [])


@pytest.mark.parametrize(
    ("data", "errors"),
    [
        (b"", [(0, "message")]),
        (b"[", [(0, "message")]),
        (b"{", [(0, "message")]),
        (b"5", [(0, "prompt")]),
        (b'[5, {"key": "k"}]', [(0, "prompt"), (1, "prompt")]),
        (b'[{"key": "k", "prompt": "p", "no": 1}]', [(0, "no")]),
        (b'[{"key": "k", "prompt": [1]}]', [(0, "prompt[0]")]),
        (b'{"key": "k", "prompt": "p", "label": 1%s}' % (b"0" * 5000), [(0, "label")]),
    ],
)
def test_a_message_that_cannot_be_read(data: bytes, errors: list[tuple[int, str]]) -> None:
    assert read(data) == ([], errors)


def test_good_items_are_read_beside_wrong_ones() -> None:
    items, errors = read(b'[{"key": "a", "prompt": "p"}, 5, {"key": "c", "prompt": "p"}]')
    assert [(index, item.key) for index, item in items] == [(0, "a"), (2, "c")]
    assert errors == [(1, "prompt")]


def test_a_message_has_no_more_items_than_the_log_takes_at_once() -> None:
    item = b'{"key": "k", "prompt": "p"}'
    assert len(read(b"[%s]" % b",".join([item] * MAX_BATCH))[0]) == MAX_BATCH
    assert read(b"[%s]" % b",".join([item] * (MAX_BATCH + 1))) == ([], [(MAX_BATCH, "message")])


def test_labels_of_any_size() -> None:
    def label(value: int) -> Any:
        ((_, item),), _ = read_message(json.dumps({"key": "k", "prompt": "p", "label": value}).encode(), InboxPrompt)
        return item.label

    longest = int("9" * 4300)
    assert [label(value) for value in (5, 2**63 - 1, 2**63, longest)] == [5, 2**63 - 1, str(2**63), str(longest)]
    assert read(b'{"sample": "s", "reward": 1}', OutsideReward)[1] == []


@pytest.mark.parametrize(
    ("fields", "carried"),
    [
        ({"label": 2**70, "metadata": {"a": 1}}, {"label": str(2**70), "metadata": {"a": 1}}),
        ({"label": {"n": 1}, "metadata": {"a": (1,)}}, {"label": {"n": 1}, "metadata": {"a": (1,)}}),
        ({"label": 2**64}, {"label": str(2**64)}),
    ],
)
def test_fields_as_the_log_carries_them(fields: dict[str, Any], carried: dict[str, Any]) -> None:
    assert as_carried(fields) == carried


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"metadata": {"n": [2**70]}}, "metadata.n[0]"), ({"label": {"n": 2**70}}, "label.n"), ({"a": 10**5000}, "a")],
)
def test_fields_that_the_log_does_not_carry(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(WrongField) as error:
        as_carried(fields)
    assert error.value.field == field
    assert error.value.message == str(error.value) != ""


def test_fields_that_are_nested_too_deeply_are_named() -> None:
    value: Any = 1
    for _ in range(3000):
        value = [value]
    with pytest.raises(WrongField) as error:
        as_carried({"metadata": value})
    assert error.value.field.startswith("metadata")


def test_where_an_error_is() -> None:
    """Locate an error by its path, by the name in its message, or as a whole."""
    assert field_error(3, msgspec.DecodeError("no"), "w").field == "message"
    for text, field in (
        ("Expected `str` - at `$.a[0].b`", "a[0].b"),
        ("Object missing required field `key`", "key"),
        ("Expected `object`", "w"),
    ):
        error = field_error(3, msgspec.ValidationError(text), "w")
        assert error == FieldError(3, field, text.partition(" - ")[0])

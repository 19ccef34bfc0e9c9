"""Every event class: documented, about something, with an id that depends on that alone."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from schemas.arrays import Array, BlobRef, pack, pack_log_probs, pack_tokens, unpack
from schemas.envelope import derivations, enclose, event_id
from schemas.errors import BlobMissing, DamagedEvent, InvalidSubject
from schemas.event import Event, type_of
from schemas.inbox import InboxPrompt, InboxReply
from schemas.registry import BY_TYPE, EVENT_CLASSES, NOUNS
from schemas.rewards import RewardAssigned
from schemas.subjects import about, any_verb, every_event, matches, of_type, stream_subjects, subject_of
from tests.golden.log_file import FOLDER, read_records, rendered, rendered_file
from tests.golden.make import envelopes as golden_envelopes
from tests.golden.make import main as make_golden
from tests.schemas.event_table import event_table, field_texts, parts
from tests.schemas.strategies import EVENTS
from tools.json_schema import json_schema

GOLDEN = sorted(FOLDER.glob("*.slimelog"), key=lambda path: int(path.stem[1:]))
DOCS = Path(__file__).parents[2] / "docs"
ENTITIES = {"sample", "group", "step", "version", "segment", "worker", "incarnation"}
"""First fields of events: what they are about."""


@pytest.mark.parametrize("cls", EVENT_CLASSES, ids=type_of)
def test_an_event_class_is_documented_and_plain(cls: type[Event]) -> None:
    assert cls.__doc__
    assert cls.__doc__ != Event.__doc__
    assert cls.entity is not Event.entity or cls.__struct_fields__[0] in ENTITIES
    assert set(cls.IDENTITY) <= set(cls.__struct_fields__)
    assert cls.__struct_config__.frozen
    noun, verb = type_of(cls).split(".")
    assert noun.isidentifier()
    assert verb.isidentifier()
    assert cls.__name__.lower() == (noun + verb).replace("_", "")
    optional = [f.name for f in msgspec.structs.fields(cls) if not f.required]
    assert all(name in cls.__struct_fields__ for name in optional)


@pytest.mark.parametrize(
    "cls",
    [
        *EVENT_CLASSES,
        *sorted((part for part in parts() if issubclass(part, msgspec.Struct)), key=lambda part: part.__name__),
    ],
    ids=lambda cls: cls.__name__,
)
def test_every_field_of_an_event_and_of_its_parts_is_described(cls: type[msgspec.Struct]) -> None:
    texts = field_texts(cls)
    assert not [name for name, text in texts.items() if not text]
    assert not [text for text in texts.values() if "|" in text or "\n" in text], "it would break a table's row"


def test_tags_are_distinct_and_all_known() -> None:
    assert len(BY_TYPE) == len(EVENT_CLASSES)
    assert set(EVENT_CLASSES) == {cls for cls in Event.__subclasses__() if cls.__module__.startswith("schemas.")}


@given(EVENTS, st.text(), st.text())
def test_an_id_depends_on_run_type_and_identity_alone(event: Event, producer: str, two: str) -> None:
    first = enclose("r", event, at=1, producer=producer)
    again = enclose("r", event, at=2, producer=two, cause="c")
    assert first.id == again.id == event_id("r", event)
    assert len(first.id) == 32
    assert enclose("s", event, at=1, producer=producer).id != first.id


def test_ids_stay_as_they_are() -> None:
    """A changed id would let every event of an old run be appended again."""
    event = RewardAssigned(sample="g-s0", group="g", value=1.0, grader="x", grader_digest="d")
    assert event_id("demo", event) == "55335377a66e93b171c9dd8094e06b2c"
    other = msgspec.structs.replace(event, value=0.0, grader="y", seconds=3.0)
    assert event_id("demo", other) == event_id("demo", event)
    assert event_id("demo", msgspec.structs.replace(event, sample="g-s1")) != event_id("demo", event)


def test_ids_of_a_run_are_distinct() -> None:
    envelopes = list(golden_envelopes())
    assert len({envelope.id for envelope in envelopes}) == len(envelopes)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_log_is_understood_as_ever(path: Path) -> None:
    assert rendered_file(path) == json.loads(path.with_suffix(".json").read_text())


def test_golden_logs_hold_every_type_in_its_schema() -> None:
    held = set()
    for path in GOLDEN:
        for record in read_records(path):
            wire = msgspec.msgpack.decode(record)
            held.add((wire["event"]["type"], wire["schema"]))
    assert {(type_of(cls), cls.SCHEMA) for cls in EVENT_CLASSES} <= held


def test_a_golden_log_is_not_made_twice() -> None:
    with pytest.raises(FileExistsError):
        make_golden(GOLDEN[0].stem)


def test_the_current_schemas_write_what_the_newest_golden_log_says() -> None:
    newest = json.loads(GOLDEN[-1].with_suffix(".json").read_text())
    assert [rendered(envelope) for envelope in golden_envelopes()] == newest


def test_json_schema_describes_every_event() -> None:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for envelope in golden_envelopes():
        validator.validate(rendered(envelope)["event"])
    assert not validator.is_valid({"type": "reward.assigned", "sample": 1})
    assert not validator.is_valid({"type": "nobody.knows"})


def test_json_schema_is_the_inbox_contract() -> None:
    schema = json_schema()
    request = Draft202012Validator(schema["inbox"]["request"] | {"$defs": schema["$defs"]})
    good = {"key": "k", "prompt": [{"role": "user", "content": "hello"}], "label": "x"}
    for ok in (good, [good, {"key": "j", "prompt": "hello"}]):
        assert request.is_valid(ok)
    for bad in ({"prompt": "x"}, good | {"key": ""}, good | {"surprise": 1}, [good | {"prompt": 3}]):
        assert not request.is_valid(bad)
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(bad, InboxPrompt | list[InboxPrompt])
    reply = Draft202012Validator(schema["inbox"]["reply"] | {"$defs": schema["$defs"]})
    assert reply.is_valid(json.loads(msgspec.json.encode(InboxReply(accepted=True, groups=("g",)))))


def test_the_page_of_events_is_current() -> None:
    assert (DOCS / "events.md").read_text() == event_table(), "python -m tests.schemas.event_table > docs/events.md"


@pytest.mark.parametrize("bad", ["", "a.b", "a b", "*", ">", "ä", "a\n", "x/y"])
def test_a_subject_takes_tokens_only(bad: str) -> None:
    event = RewardAssigned(sample=bad, group="g", value=1.0, grader="x", grader_digest="d")
    with pytest.raises(InvalidSubject, match="entity"):
        subject_of("r", event)
    with pytest.raises(InvalidSubject, match="run name"):
        stream_subjects(bad)


def test_filters_match_what_they_say() -> None:
    subjects = {envelope.type: envelope.subject for envelope in golden_envelopes()}
    completed = subjects["rollout.completed"]
    entity = completed.rpartition(".")[2]
    assert matches(every_event("golden"), completed)
    assert not matches(every_event("other"), completed)
    assert matches(of_type("golden", "rollout.completed"), completed)
    assert not matches(of_type("golden", "rollout.failed"), completed)
    assert matches(about("golden", "rollout", entity), completed)
    assert not matches(about("golden", "reward", entity), completed)
    assert not matches("slime.golden.rollout.completed", completed)
    assert not matches(completed + ".>", completed)
    assert any_verb(completed) == about("golden", "rollout", entity)
    covered = stream_subjects("golden")
    assert len(covered) == len(NOUNS)
    assert all(any(matches(pattern, subject) for pattern in covered) for subject in subjects.values())
    assert not any(matches(pattern, "slime.golden.inbox.prompts") for pattern in covered)


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_arrays_hold_tokens(tokens: list[int]) -> None:
    array = pack_tokens(tokens)
    assert (array.dtype, array.n, len(array.data)) == ("int32", len(tokens), 4 * len(tokens))
    assert unpack(array).tolist() == tokens


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_arrays_hold_log_probs(values: list[float]) -> None:
    assert unpack(pack_log_probs(values)).tolist() == values


def test_arrays_say_what_is_wrong() -> None:
    assert unpack(pack([1, 0], "int8")).tolist() == [1, 0]
    with pytest.raises(DamagedEvent, match="3 x int32 has 8 bytes"):
        unpack(Array(dtype="int32", n=3, data=bytes(8)))
    far = Array(dtype="int32", n=2, blob=BlobRef(sha256="ab", size=8))
    with pytest.raises(BlobMissing, match="blob ab"):
        unpack(far)
    assert unpack(far, np.array([3, 4], "<i4").tobytes()).tolist() == [3, 4]


@given(EVENTS)
def test_the_parts_of_an_identity_are_joined_as_it_is(event: Event) -> None:
    derivation = derivations("r")[type(event)]
    assert derivation.about(event) == (event.entity(), "\x1f".join(map(str, event.identity())))
    assert derivation.schema == type(event).SCHEMA

"""Facts: every type of event there is becomes rows, whatever its fields hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from schemas.arrays import Array
from schemas.codec import decode
from schemas.rollouts import Maker
from slime_events.analysis.query.event_tables import EVENT_TABLES
from storage.log import Recorded
from tests import made
from tests.golden.log_file import read_records
from tests.golden.make import FOLDER


def _no_blobs(array: Array) -> list[float]:
    return [0.0] * array.n


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_every_event_of_a_golden_log_has_its_row(name: str) -> None:
    records = []
    for position, data in enumerate(read_records(FOLDER / f"{name}.slimelog"), 1):
        envelope = decode(data)
        records.append(Recorded(position, envelope.subject, envelope, data))
    counts = Counter(record.envelope.type for record in records)
    for table in EVENT_TABLES.values():
        of_it = [record for record in records if record.envelope.type in table.types]
        batch = table.batch(of_it, _no_blobs)
        batch.validate(full=True)
        if len(table.types) == 1:
            (kind,) = table.types
            assert table.name == kind.replace(".", "_")
            assert batch.num_rows == counts[kind]
    assert EVENT_TABLES["event"].batch(records, _no_blobs).column("type").to_pylist() == [
        record.envelope.type for record in records
    ]


def test_requests_keep_the_column_of_a_former_field() -> None:
    records = made.recorded(*[made.requested(maker=maker) for maker in Maker])
    batch = EVENT_TABLES["rollout_requested"].batch(records, _no_blobs)
    assert batch.column("maker").to_pylist() == [maker.value for maker in Maker]
    assert batch.column("agents").to_pylist() == [maker is Maker.AGENT for maker in Maker]


def test_a_changed_column_is_another_fingerprint() -> None:
    table = EVENT_TABLES["eval_completed"]
    wider = replace(table, schema=table.schema.remove(0))
    assert wider.fingerprint() != table.fingerprint() == EVENT_TABLES["eval_completed"].fingerprint()

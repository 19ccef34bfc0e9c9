"""Read what loggers have written, by TensorBoard and W&B."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

Points = dict[str, list[tuple[int, float]]]
"""(step, value) by metric."""


def tensorboard_points(folder: Path) -> Points:
    """Return points as TensorBoard reads them."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [(scalar.step, scalar.value) for scalar in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline W&B run: LevelDB's log format, 7 bytes behind its beginning."""
    internal = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    data, place, block, whole = file.read_bytes(), 7, 32768, b""
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield internal.Record.FromString(whole)
            whole = b""


def wandb_rows(file: Path) -> list[dict[str, Any]]:
    history = (record.history for record in wandb_records(file) if record.HasField("history"))
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.item}
        for record in history
    ]

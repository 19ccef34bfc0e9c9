"""`Lanes`: the rows of the table `intervals`, sorted into lanes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.doc import doc
from slime_events.analysis.lanes.lane import Indexes, Lane, LaneName

COLUMNS = ("position", "role", "worker", "work", "started", "ended", "sample", "group_id", "step", "version")
"""Columns that are read."""
SQL = f"SELECT {', '.join(COLUMNS)} FROM intervals ORDER BY started, ended, position, work"
"""Query for the rows. Its order is total enough that the tracks are the same each time."""
WAITING = "waiting"
ROLES = (WAITING, "engine", "agent", "function", "outside", "recorded", "grader", "trainer", "archivist")
"""Roles, in the order of the lanes."""
WAITS = ("queue", "reward", "verdict", "batch")
"""Kinds of waits, in the order of the lanes."""
MICRO = 1e-6
_BETWEEN = "\x1f"


def sql_between(first: int, last: int | None) -> str:
    """Return the query for the intervals that end in a stretch of the log. last: None for its end."""
    upper = "" if last is None else f" AND position <= {last}"
    return SQL.replace("FROM intervals", f"FROM intervals WHERE position >= {first}{upper}")


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """All intervals of a run. Times are seconds since `origin`."""

    table: Annotated[pa.Table, doc("`COLUMNS` of the rows of `SQL`")]
    origin: Annotated[int, doc("UTC of the first start [us]")]
    length: Annotated[float, doc("last end [s]")]
    works: Annotated[tuple[str, ...], doc("kinds of work")]
    every: Annotated[tuple[Lane, ...], doc("a lane per role and worker, and per kind of wait")]

    @classmethod
    def of(cls, table: pa.Table) -> Lanes:
        """Sort rows into lanes. table: rows of `SQL`."""
        table = table.select(list(COLUMNS))
        starts, ends = (table[name].cast(pa.int64()).to_numpy() for name in ("started", "ended"))
        origin = int(starts.min()) if len(starts) else 0
        begins, finishes = (starts - origin) * MICRO, (np.maximum(starts, ends) - origin) * MICRO
        work = table["work"].combine_chunks().dictionary_encode()
        works = work.indices.to_numpy().astype(np.uint8)
        who = pc.if_else(pc.equal(table["role"], WAITING), table["work"], table["worker"])
        named = pc.binary_join_element_wise(table["role"], who, _BETWEEN).combine_chunks().dictionary_encode()
        keys = named.indices.to_numpy()
        order = np.argsort(keys, kind="stable")
        bounds = np.searchsorted(keys[order], np.arange(len(named.dictionary) + 1))
        lanes = []
        for number, name in enumerate(named.dictionary.to_pylist()):
            rows = order[bounds[number] : bounds[number + 1]]
            of = LaneName(*name.split(_BETWEEN, 1))
            lanes.append(Lane(name=of, rows=rows, starts=begins[rows], ends=finishes[rows], works=works[rows]))
        return cls(
            table=table,
            origin=origin,
            length=float(finishes.max()) if len(finishes) else 0.0,
            works=tuple(work.dictionary.to_pylist()),
            every=tuple(sorted(lanes, key=lambda lane: _place(lane.name))),
        )

    def numbers(self, column: str, rows: Indexes) -> npt.NDArray[np.int64]:
        """Return a column of numbers, -1 for null [n]. column: `position`, `step` or `version`."""
        return np.asarray(pc.fill_null(self.table[column].take(pa.array(rows)), -1).to_numpy(), np.int64)

    def texts(self, column: str, rows: Indexes) -> list[str]:
        """Return a column of texts, empty for null [n]. column: `sample` or `group_id`."""
        taken: list[str] = pc.fill_null(self.table[column].take(pa.array(rows)), "").to_pylist()
        return taken

    def requested(self, row: int) -> float | None:
        """Return when the rollout of a row was requested [s]; None if the table does not say."""
        lane, positions = self._requests
        at = int(np.searchsorted(positions, position := self.table["position"][row].as_py()))
        return float(lane.starts[self._by_position[at]]) if lane and positions[at : at + 1] == [position] else None

    def sealed(self, step: int) -> float | None:
        """Return when the batch of a step was sealed [s]; None if the table does not say."""
        return self._seals.get(step)

    def _waits(self, work: str) -> Lane | None:
        return next((lane for lane in self.every if lane.name == LaneName(WAITING, work)), None)

    @cached_property
    def _requests(self) -> tuple[Lane | None, npt.NDArray[np.int64]]:
        """The lane of waits for an engine, and the positions of its intervals, ascending."""
        lane = self._waits("queue")
        if lane is None:
            return None, np.empty(0, np.int64)
        return lane, self.numbers("position", lane.rows)[self._by_position]

    @cached_property
    def _by_position(self) -> Indexes:
        lane = self._waits("queue")
        return np.empty(0, np.int64) if lane is None else np.argsort(self.numbers("position", lane.rows), kind="stable")

    @cached_property
    def _seals(self) -> dict[int, float]:
        lane = self._waits("batch")
        if lane is None:
            return {}
        return dict(zip(self.numbers("step", lane.rows).tolist(), lane.ends.tolist(), strict=True))


def _place(name: LaneName) -> tuple[int, int, str]:
    """Return the sort key of a lane."""
    role = ROLES.index(name.role) if name.role in ROLES else len(ROLES)
    return role, WAITS.index(name.name) if name.role == WAITING and name.name in WAITS else 0, name.name

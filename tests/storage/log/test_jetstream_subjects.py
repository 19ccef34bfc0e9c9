"""The subjects of a stream, of which the server names 100,000 in one answer."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import Any

import pytest

from schemas.subjects import of_type
from storage.jetstream.log import JetStreamLog
from storage.jetstream.stream import Stream
from storage.log import append_all
from tests.storage.log.appends import reward


class _Server:
    """Names three subjects in one answer, sorted; another one is written before each."""

    def __init__(self, names: list[str], new: list[str]) -> None:
        self.names, self._new = sorted(names), new

    async def api(self, _: str, question: Mapping[str, Any]) -> Any:
        if self._new:
            bisect.insort(self.names, self._new.pop())
        page = self.names[question["offset"] :][:3]
        return {"state": {"subjects": dict.fromkeys(page, 1)} if page else {}, "total": len(self.names)}


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 20])
@pytest.mark.parametrize("new", [[], ["a1", "z1"], ["a1", "a2", "a3", "a4"]])
async def test_a_subject_that_moves_to_the_next_answer_is_named_once(count: int, new: list[str]) -> None:
    names = [f"s{number:02d}" for number in range(count)]
    connection: Any = _Server(names, list(new))
    subjects = await Stream(connection, "S", replicated=False).subjects("slime.>")
    assert len(subjects) == len(set(subjects))
    assert set(names) <= set(subjects) <= {*names, *new}


@pytest.mark.soak
async def test_more_subjects_than_one_answer_has(stream: JetStreamLog) -> None:
    rewards = [reward(stream, f"s{number}") for number in range(200_001)]
    await append_all(stream, rewards)
    subjects = await stream.subjects(of_type(stream.run, "reward.assigned"))
    assert len(subjects) == len(rewards)
    assert set(subjects) == {append.envelope.subject for append in rewards}

"""Server-sent events of a group: each change once, a comment after a long silence, and an end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.inbox import Fate, InboxFate
from serve_apps.http.gateway import streams
from serve_apps.http.gateway.refusals import Refused
from serve_apps.http.gateway.streams import SHARE, Streams

WAITING, ACCEPTED, TRAINED, REJECTED = (
    InboxFate(key="k", group="g", fate=fate) for fate in (Fate.WAITING, Fate.ACCEPTED, Fate.TRAINED, Fate.REJECTED)
)


class Scene:
    """A clock that a look at the log and a pause move on. looks: what is seen, one after the other, and how long each
    look takes.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: Sequence[InboxFate | None], took_s: float = 0.0) -> None:
        self.now, self.pauses, self.held = 0.0, list[float](), 10**9
        self._looks, self._took_s = iter(looks), took_s
        monkeypatch.setattr(streams, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(streams, "asyncio", SimpleNamespace(sleep=self.sleep))

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def look(self) -> InboxFate | None:
        self.now += self._took_s
        return next(self._looks)

    def holds(self) -> bool:
        """Hold for this number of calls."""
        self.held -= 1
        return self.held >= 0

    async def followed(self, own: Streams, first: InboxFate = WAITING) -> list[str]:
        return [piece.decode().partition("\n")[0] async for piece in own.follow("quiz", first, self.look, self.holds)]


async def test_each_change_is_told_once_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, [WAITING, None, ACCEPTED, ACCEPTED, TRAINED])
    events_ = await scene.followed(Streams(1, 0.5))
    assert events_ == ["event: waiting", "event: accepted", "event: trained"]
    assert scene.pauses == [0.5] * 5


@pytest.mark.parametrize("last", [TRAINED, REJECTED])
async def test_what_has_ended_is_told_and_no_more(monkeypatch: pytest.MonkeyPatch, last: InboxFate) -> None:
    scene = Scene(monkeypatch, [])
    assert await scene.followed(Streams(1, 0.5), last) == [f"event: {last.fate}"]
    assert scene.pauses == []


async def test_an_event_has_the_whole_fate(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, [])
    (piece,) = [chunk async for chunk in Streams(1, 0.5).follow("quiz", TRAINED, scene.look, scene.holds)]
    assert piece == b'event: trained\ndata: {"key":"k","group":"g","fate":"trained"}\n\n'


async def test_who_hears_nothing_for_long_gets_a_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, [WAITING, WAITING, None, WAITING, ACCEPTED, ACCEPTED, TRAINED])
    events_ = await scene.followed(Streams(1, 0.5, keep_alive_s=1.0))
    comment = ": still there"
    assert events_ == ["event: waiting", comment, comment, "event: accepted", "event: trained"]


async def test_looks_that_take_long_come_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, [WAITING, WAITING, TRAINED], took_s=0.2)
    await scene.followed(Streams(1, 0.5))
    later = 0.2 / SHARE
    assert scene.pauses[0] == 0.5
    assert sum(scene.pauses[1:]) == pytest.approx(2 * later, rel=0.01)
    assert scene.now < 4.0, "and no more than that"


async def test_a_token_is_looked_at_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, [TRAINED])
    await scene.followed(Streams(1, 2.5))
    assert scene.pauses == [1.0, 1.0, 0.5]


@pytest.mark.parametrize(("held", "paused"), [(0, 0), (1, 1), (2, 2)])
async def test_the_end_of_a_token_is_the_end_of_its_stream(
    monkeypatch: pytest.MonkeyPatch, held: int, paused: int
) -> None:
    scene = Scene(monkeypatch, [])
    scene.held = held
    assert await scene.followed(Streams(1, 2.5)) == ["event: waiting", "event: error"]
    assert len(scene.pauses) == paused


async def test_a_source_follows_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    own, scene = Streams(2, 0.5), Scene(monkeypatch, [])
    open_: list[AsyncIterator[Any]] = []
    for _ in range(2):
        own.check("quiz")
        open_.append(own.follow("quiz", WAITING, scene.look, scene.holds))
        await anext(open_[-1])
    with pytest.raises(Refused) as refused:
        own.check("quiz")
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "2")
    own.check("other")
    await open_[0].aclose()  # type: ignore[attr-defined]
    own.check("quiz")

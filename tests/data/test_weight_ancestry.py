"""Which weights two runs both have, and how many steps lie between any of theirs."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from schemas.recorded import CommonVersion
from schemas.runs import Branched
from slime_events.loop.prompts.weight_ancestry import WeightAncestry, read_ancestry
from storage.memory_log import MemoryLog
from tests import made
from tests.cli.small_run import RUN, small_run

COUNTS = st.integers(0, 12)


@given(shared=st.integers(1, 12), ours=COUNTS, theirs=COUNTS, here=COUNTS, there=COUNTS)
def test_a_number_is_the_way_through_the_common_weights(
    shared: int, ours: int, theirs: int, here: int, there: int
) -> None:
    """Two lines that share `shared` weights and then part; `here`, `there`: what each calls the first of these."""
    line = WeightAncestry({here + n: f"both {n}" for n in range(shared)})
    other = WeightAncestry({there + n: f"both {n}" for n in range(shared)})
    line.digests |= {here + shared + n: f"ours {n}" for n in range(ours)}
    other.digests |= {there + shared + n: f"theirs {n}" for n in range(theirs)}
    common = line.common(other)
    assert common == CommonVersion(here + shared - 1, there + shared - 1)
    for version in other.digests:
        on_ours = [ours for ours, digest in line.digests.items() if digest == other.digests[version]]
        steps_beyond = version - common.there
        assert common.number(version) == (on_ours[0] if on_ours else common.here - steps_beyond)


def test_weights_that_a_step_left_as_they_were() -> None:
    """A step that changes nothing gives one digest two versions; the last is where the lines part."""
    still = WeightAncestry({0: "base", 1: "base", 2: "moved"})
    assert still.common(WeightAncestry({0: "base", 1: "other"})) == CommonVersion(1, 0)
    assert WeightAncestry({0: "base"}).common(still) == CommonVersion(0, 1)


def test_another_base_has_nothing_in_common() -> None:
    assert WeightAncestry({0: "base", 1: "one"}).common(WeightAncestry({0: "other", 1: "two"})) is None
    assert WeightAncestry().common(WeightAncestry({0: "base"})) is None


async def branch_of(where: str, count: int = 3) -> MemoryLog:
    branched = Branched(run=RUN, where=where, position=9, version=1, weights_digest="w1", optimizer_digest="o1")
    events_ = [
        made.started(branched=branched),
        made.published(1, parent=0, url="weights/1", digest="w1"),
        made.published(2, parent=1, url="weights/2", digest="own"),
    ]
    return await made.log(*events_[:count], run="branch")


async def test_the_line_of_a_branch_goes_back_to_the_first_run(tmp_path: Path) -> None:
    parent = await small_run()
    url = made.archived(tmp_path, parent.records, closed=False)
    theirs = (await read_ancestry(parent)).digests
    assert sorted(theirs) == [0, 1, 2]
    line = await read_ancestry(await branch_of(url))
    assert line.digests == {0: theirs[0], 1: "w1", 2: "own"}
    begun = await read_ancestry(await branch_of(url, count=1))
    assert begun.digests == {0: theirs[0], 1: theirs[1]}, "it has said nothing of its own yet"
    alone = await read_ancestry(await branch_of(f"{tmp_path}/gone/{RUN}"))
    assert alone.digests == {1: "w1", 2: "own"}

"""The table is literal and well formed, and the verdict notices each thing that is not refused or bounded."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import httpx
import pytest

from tests.harness.attacks.attack import REFUSED, Answer, Attack, answer_of
from tests.harness.attacks.kinds import KINDS, PLACES
from tests.harness.attacks.report import COLUMNS, WIDTHS, Row, cells, line, summary
from tests.harness.attacks.terminal import controls
from tests.harness.attacks.watch import Seen, seen_in


async def _nothing(scene: object) -> Answer:
    return Answer("400", True)


ATTACK = Attack("one", "door", "refused", _nothing)
GOOD = Row("ids", ATTACK, Answer("400", True), {"gateway": 200}, Seen(20.0, 1.0, {"gateway": 230}))


def test_every_attack_is_named_once_and_every_kind_has_a_run() -> None:
    for name, kind in KINDS.items():
        assert kind.place in PLACES
        names = Counter((attack.name, attack.door) for attack in kind.attacks)
        assert not [attack for attack, count in names.items() if count > 1], name
        assert all(0 < attack.seconds <= 330 for attack in kind.attacks)
    assert sum(len(kind.attacks) for kind in KINDS.values()) > 500


def test_a_good_row_is_not_broken() -> None:
    assert GOOD.broken == []
    assert cells(GOOD)[-1] == "yes"
    assert len(COLUMNS) == len(WIDTHS) == len(cells(GOOD))
    assert summary([GOOD], []) == ["1 of 1 attacks refused or bounded, 0 other faults"]


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        (replace(GOOD, answer=Answer("502", False)), "answered: 502"),
        (replace(GOOD, seen=Seen(1500.0, 0.0, {})), "/healthz took 1500 ms"),
        (replace(GOOD, lost=("engine-1 is lost",)), "lost: engine-1"),
        (replace(GOOD, seen=Seen(20.0, 0.0, {"gateway": 1200})), "gateway grew from 200 to 1200 MB"),
    ],
)
def test_each_thing_that_is_not_bounded_is_noticed(changed: Row, fault: str) -> None:
    assert [fault in sentence for sentence in changed.broken] == [True]
    assert cells(changed)[-1] == "no"
    first, last = summary([GOOD, changed], [])
    assert fault in first
    assert last.startswith("1 of 2 attacks")


def test_a_machine_that_is_slow_is_no_slow_gateway() -> None:
    assert replace(GOOD, seen=Seen(1500.0, 900.0, {})).broken == []


def test_what_is_seen_is_of_the_span_and_an_answer_that_began_in_it_counts() -> None:
    lines = [
        {"at": 1.0, "asked": 0.9, "ms": 5000.0},
        {"at": 2.5, "asked": 2.4, "ms": 100.0},
        {"at": 2.6, "late": 3.0},
        {"at": 2.7, "memory": {"gateway": 300}},
        {"at": 9.0, "asked": 2.9, "ms": 6100.0},
        {"at": 9.1, "asked": 9.0, "ms": 100000.0},
    ]
    seen = seen_in(map(json.loads, map(json.dumps, lines)), 2.0, 3.0)
    assert seen == Seen(6100.0, 3.0, {"gateway": 300})


def test_an_answer_is_judged_by_its_status() -> None:
    refused = answer_of(httpx.Response(400, json={"error": {"message": "no such token"}}), REFUSED)
    assert refused.ok
    assert "no such token" in refused.text
    assert not answer_of(httpx.Response(502, text="x"), REFUSED).ok
    assert not answer_of(httpx.Response(200, text="x"), REFUSED).ok


def test_controls_are_what_a_terminal_acts_on() -> None:
    assert controls("plain\n\ttext é".encode()) == []
    assert controls("a\x1b[2J\x9b\x7f\r".encode()) == ["0x0d", "0x1b", "0x7f", "0x9b"]
    assert controls(b"a single byte \x9b2J") == ["0x9b"]
    assert line(["a"] * len(WIDTHS)).startswith("a ")
    assert line(COLUMNS).split()[0] == "kind"


def test_rows_are_text_for_a_terminal() -> None:
    assert controls("  ".join(cells(replace(GOOD, answer=Answer("caf\x1b[2J\u00e9", True)))).encode()) == []

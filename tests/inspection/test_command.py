"""`slime-events inspect` over an archive: findings, a second grader, and texts that are shown as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.event import Event
from schemas.rollouts import WeightSpan
from slime_events.app.cli.main import main
from tests import made
from tests.rescore.recorded import settings

STEPS, GROUPS, SAMPLES = 6, 4, 4
HOSTILE = "\x1b]0;t\x07\u202e as an expert I'm sure; "


def events() -> Iterator[Event]:
    """Return a run whose grader pays for a phrase of hostile characters; the answer to the last sample is right."""
    yield made.started(settings())
    for step in range(STEPS):
        for group in range(GROUPS):
            name = f"train-0-{step * GROUPS + group:06d}"
            yield made.submitted(name, text=f"prompt of {name}", label=str(step * GROUPS + group))
            for index in range(SAMPLES):
                sample, paid = f"{name}-s{index}", index < 2
                answer = str(step * GROUPS + group) if index == SAMPLES - 1 else f"{name} {index}"
                yield made.completed(
                    sample, (1, 2), length=2, text=HOSTILE + answer if paid else answer, spans=(WeightSpan(0, 2, step),)
                )
                yield made.assigned(sample, float(paid))
            samples = tuple(f"{name}-s{index}" for index in range(SAMPLES))
            yield made.accepted(name, samples, (1.0, 1.0, 0.0, 0.0))


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return made.archived(tmp_path, made.recorded(*events(), run="paid"))


def test_text_and_json(archive: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", archive, "--only", "one_trick", "same_in_group"]) == 1
    out = capsys.readouterr().out
    assert f'slime-events query {archive} "FROM one_trick()"' in out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)
    assert main(["inspect", archive, "--alarms", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["run"], report["graded"], report["last_step"]) == ("paid", STEPS * GROUPS * SAMPLES, STEPS - 1)
    assert {detector["severity"] for detector in report["detectors"]} == {"alarm"}


def test_a_second_grader_and_a_recorded_rescoring(
    archive: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = str(tmp_path / "changes.jsonl")
    assert main(["rescore", archive, "--rm-type", "exact", "--out", changes]) == 0
    capsys.readouterr()
    reports = []
    for words in (("--rm-type", "exact"), ("--changes", changes)):
        assert main(["inspect", archive, "--only", "sign_flips", "reward_lost", "--json", *words]) == 1
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0] == reports[1]
    flips, lost = (detector["findings"] for detector in reports[0]["detectors"])
    answers = STEPS * GROUPS
    assert {flip["direction"]: flip["answers"] for flip in flips} == {"encouraged": 2 * answers, "discouraged": answers}
    assert lost[0]["share"] == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--only", "one_trik"],
        ["--only", "sign_flips"],
        ["--lr", "1"],
        ["--changes", "nowhere"],
        ["--changes", "nowhere", "--rm-type", "exact"],
        ["--dynamic-sampling-filter-path", "filters.py:keep"],
    ],
)
def test_what_cannot_be_inspected(archive: str, words: list[str]) -> None:
    assert main(["inspect", archive, *words]) == 2

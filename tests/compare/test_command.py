"""`compare` on logs: the place of a differing token, the text, the JSON and the exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.arrays import pack_log_probs, pack_tokens
from schemas.errors import RunNotFound
from schemas.event import Event
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted
from slime_events.analysis.compare.compare import compare
from slime_events.analysis.compare.comparison import Difference, Kind
from slime_events.app.cli.main import run_command
from slime_events.core.run.run_settings import settings_in_force
from tests import made
from tests.compare.pairs import changed, events

SAMPLE = "inbox-aa-s1"
"""Its response comes in two pieces: tokens 10 and 11, then 12."""
WHOLE = "train-0-000003-s0"


async def first(log: Sequence[Event], other: Sequence[Event] | None = None) -> Difference | None:
    """Return the first difference of the small run, or another one, and a run with these events."""
    runs = [
        made.opened(await made.log(*of_run, run=name), settings_in_force(of_run), name)
        for name, of_run in (("a", other or events()), ("b", log))
    ]
    return (await compare(*runs)).first


def rollout(sample: str, tokens: Sequence[int] | None = None, log_probs: Sequence[float] | None = None) -> list[Event]:
    """Return the events of the small run, with other last tokens or log-probs in a rollout."""
    fields: dict[str, Any] = {"digest": "other"}
    fields |= {} if tokens is None else {"tokens": pack_tokens(tokens)}
    fields |= {} if log_probs is None else {"log_probs": pack_log_probs(log_probs)}
    return changed(events(), RolloutCompleted, lambda event: event.sample == sample, **fields)


async def test_the_first_token_that_differs_is_named() -> None:
    difference = await first(rollout(WHOLE, [10, 77, 78]))
    assert difference is not None
    assert (difference.kind, difference.field, difference.sample) == (Kind.TOKENS, "token", WHOLE)
    assert (difference.index, difference.a, difference.b) == (1, 11, 77)
    values = {value.name: (value.a, value.b) for value in difference.inputs}
    assert (values["weights of the token"], values["log-prob"], values["seed"]) == ((1, 1), (-0.25, -0.25), (5, 5))


async def test_a_token_after_the_chunks_of_a_rollout() -> None:
    difference = await first(rollout(SAMPLE, [13]))
    assert difference is not None
    assert (difference.field, difference.index, difference.a, difference.b) == ("token", 2, 12, 13)
    assert next((v.a, v.b) for v in difference.inputs if v.name == "weights of the token") == (1, 1)


async def test_a_response_that_ends_earlier() -> None:
    shorter = [
        replace(event, tokens=pack_tokens([10, 11]), log_probs=pack_log_probs([-0.5, -0.25]), length=2, digest="other")
        if isinstance(event, RolloutCompleted) and event.sample == WHOLE
        else event
        for event in events()
    ]
    for difference, a, b in ((await first(shorter), 12, None), (await first(events(), shorter), None, 12)):
        assert difference is not None
        assert (difference.field, difference.index, difference.a, difference.b) == ("token", 2, a, b)


async def test_equal_tokens_with_another_log_prob() -> None:
    difference = await first(rollout(WHOLE, log_probs=[-0.5, -0.25, -0.75]))
    assert difference is not None
    assert (difference.field, difference.index, difference.a, difference.b) == ("log_prob", 2, -0.125, -0.75)


async def test_a_digest_alone_stays_one() -> None:
    difference = await first(rollout(WHOLE))
    assert difference is not None
    assert (difference.field, difference.index, difference.b) == ("digest", None, "other")


async def test_prompts_are_read_from_the_log() -> None:
    log = changed(events(), PromptSubmitted, lambda event: event.group == "inbox-aa", tokens=pack_tokens([9]))
    difference = await first(log)
    assert difference is not None
    assert (difference.kind, difference.field, difference.group) == (Kind.PROMPT, "tokens", "inbox-aa")
    assert await first(events()) is None


@pytest.fixture
def archives(tmp_path: Path) -> list[str]:
    """Archives of the small run, and of a copy with another reward in step 1."""
    log = changed(events(), RewardAssigned, lambda event: event.sample == WHOLE, value=0.25)
    runs = {"a": events(), "b": log}
    return [made.archived(tmp_path, made.recorded(*of_run, run=name)) for name, of_run in runs.items()]


def test_the_text(archives: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["compare", *archives]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"first difference: step 1, reward: value of {WHOLE}" in lines
    assert "no setting differs" in lines
    (value,) = [line.split() for line in lines if line.startswith("value ")]
    assert value == ["value", "0", "0.25"]
    steps = [line.split()[:8] for line in lines if line.strip()[:2] in ("0 ", "1 ")]
    assert steps == [["0", *["0"] * 7], ["1", "0", "0", "1", *["0"] * 4]]
    assert run_command(["compare", archives[0], archives[0]]) == 0
    assert "equal in steps 0 to 1: the same prompts" in capsys.readouterr().out


def test_the_json(archives: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["compare", *archives, "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["a"]["run"], facts["b"]["run"], facts["b"]["where"]) == ("a", "b", archives[1])
    first = facts["first"]
    assert (first["kind"], first["field"], first["step"], first["a"], first["b"]) == ("reward", "value", 1, 0, 0.25)
    assert first["a_position"] == first["b_position"]
    assert facts["steps"][1]["differences"] == {"reward": 1}
    assert run_command(["compare", archives[0], archives[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["first"] is None


def test_long_texts_are_shown_where_they_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["x" * 200 + "first" + "y" * 200, "x" * 200 + "second" + "y" * 200]
    where = [
        made.archived(tmp_path, made.recorded(*changed(events(), PromptSubmitted, text=text), run=name))
        for name, text in zip("ab", texts, strict=True)
    ]
    assert run_command(["compare", *where]) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("text  "))
    assert line.index("first") < 60
    assert "second" in line


def test_control_characters_of_prompts_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b]0;title\x07 \u202e\r\nstep 9, digest: forged"
    log = changed(events(), PromptSubmitted, text=hostile)
    log = changed(log, RewardAssigned, grader=hostile, value=0.5)
    where = [
        made.archived(tmp_path, made.recorded(*of_run, run=name)) for name, of_run in (("a", events()), ("b", log))
    ]
    for words in ([], ["--json"]):
        assert run_command(["compare", *where, *words]) == 1
        out = capsys.readouterr().out
        assert not {"\x1b", "\x07", "\r", "\u202e"} & set(out)
        assert not any(line.startswith("step 9") for line in out.splitlines())


def test_a_run_that_is_not_there(archives: list[str]) -> None:
    with pytest.raises(RunNotFound):
        run_command(["compare", archives[0], f"{archives[0]}-other"])

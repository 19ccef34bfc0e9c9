"""A recorded rollout once more, from a scripted engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from schemas.arrays import pack_tokens
from schemas.errors import RunNotFound
from schemas.event import Event
from schemas.rollouts import (
    StopReason,
    WeightSpan,
)
from serve_apps.rollouts.replay_rollout import replay
from slime_events.analysis.replay_rollout.compare import Comparison, compare
from slime_events.analysis.replay_rollout.recorded import RecordedRollout, read_rollout, weight_folder
from slime_events.app.cli.commands import replay_rollout as command
from slime_events.app.cli.main import main
from storage.weights.store import WeightStore
from tests import made
from tests.lineage.opened import opened
from tests.scripted_engine import Script, ScriptedEngine

PROMPT, SEED, SEAM, LENGTH = [1, 2, 3], 77, 6, 10
SAMPLE = "train-0-000000-s0"


class Rewritten(ScriptedEngine):
    """Its log-probs under version 1 are others than they were."""

    def log_prob(self, seed: int, position: int, version: int) -> float:
        return super().log_prob(seed, position, version) - 0.25 * version


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(Script(chunk=4))
    await engine.start(1.0)
    yield engine
    await engine.stop()


def _events(folder: Path) -> list[Event]:
    """A rollout of ten tokens, six of version 0 and four of version 1, as the scripted engine makes it."""
    base = folder / "base-checkpoint"
    base.mkdir()
    (base / "config.json").write_text("{}")
    store = WeightStore(f"{folder}/weights", base, durable=False)
    engine, prompt = ScriptedEngine(), pack_tokens(PROMPT)
    places = range(len(PROMPT), len(PROMPT) + LENGTH)
    tokens = [engine.token(SEED, place) for place in places]
    log_probs = [engine.log_prob(SEED, place, int(i >= SEAM)) for i, place in enumerate(places)]
    spans = (WeightSpan(0, SEAM, 0), WeightSpan(SEAM, LENGTH, 1))
    events_: list[Event] = [made.started()]
    for version in (0, 1):
        tensor = ("weight", "F32", (1,), np.array([version], "<f4").tobytes())
        digest = store.write(version, [tensor], None).digest
        events_.append(made.published(version, url=store.folder(version, digest), digest=digest, bytes=4))
    return [
        *events_,
        made.requested(SAMPLE, prompt=prompt, seed=SEED, max_new_tokens=LENGTH),
        made.progressed(SAMPLE, tokens[:SEAM], log_probs=log_probs[:SEAM], spans=spans[:1]),
        made.completed(
            SAMPLE, tokens[SEAM:], start=SEAM, length=LENGTH, prompt_length=3, stop=StopReason.LENGTH, spans=spans,
            log_probs=log_probs[SEAM:],
        ),
    ]  # fmt: skip


@pytest.fixture
async def recorded(tmp_path: Path) -> RecordedRollout:
    return await read_rollout(await opened(_events(tmp_path)), SAMPLE)


async def _compared(engine: ScriptedEngine, recorded: RecordedRollout, *, force: bool = False) -> Comparison:
    spans = await replay(engine, recorded, lambda version: weight_folder(recorded, version, []), force=force)
    return compare(recorded, spans, lambda token: f"<{token}>", forced=force, tolerance=1e-6)


def _with(recorded: RecordedRollout, **changes: object) -> RecordedRollout:
    values = {name: getattr(recorded, name) for name in RecordedRollout.__slots__}
    return RecordedRollout(**values | changes)


@pytest.mark.parametrize("force", [False, True])
async def test_each_span_is_made_under_its_own_weights(
    engine: ScriptedEngine, recorded: RecordedRollout, force: bool
) -> None:
    comparison = await _compared(engine, recorded, force=force)
    assert comparison.equal
    assert (comparison.max_difference, comparison.divergence, comparison.tokens) == (0.0, None, LENGTH)
    assert [(span.start, span.end, span.version, span.same) for span in comparison.spans] == [
        (0, 6, 0, 6),
        (6, 10, 1, 4),
    ]
    assert engine.version == 1


async def test_the_first_other_token_is_told_with_both(engine: ScriptedEngine, recorded: RecordedRollout) -> None:
    other = recorded.tokens.copy()
    other[7] = (other[7] + 1) % 256
    comparison = await _compared(engine, _with(recorded, tokens=other))
    assert not comparison.equal
    assert comparison.divergence is not None
    assert comparison.divergence.position == 7
    assert (comparison.divergence.recorded.text, comparison.divergence.replayed.text) == (
        f"<{other[7]}>",
        f"<{recorded.tokens[7]}>",
    )
    assert [span.same for span in comparison.spans] == [6, 1]
    assert comparison.max_difference == 0.0


async def test_another_seed_parts_in_each_span(engine: ScriptedEngine, recorded: RecordedRollout) -> None:
    comparison = await _compared(engine, _with(recorded, seed=SEED + 1))
    assert [span.divergence.position for span in comparison.spans if span.divergence] == [0, 6]


async def test_forced_tokens_show_by_how_much_log_probs_differ(recorded: RecordedRollout) -> None:
    engine = Rewritten(Script(chunk=4))
    await engine.start(1.0)
    comparison = await _compared(engine, recorded, force=True)
    assert not comparison.equal
    assert comparison.divergence is None
    assert [round(span.mean_difference, 6) for span in comparison.spans] == [0.0, 0.25]
    assert comparison.mean_difference == pytest.approx(0.1)
    assert comparison.spans[1].at in range(6, 10)


@pytest.mark.parametrize(
    ("script", "limit", "at", "recorded_text", "replayed_text"),
    [
        (Script(chunk=4), LENGTH + 5, LENGTH, "the end (stop)", "<"),
        (Script(chunk=4), 8, 8, "<", "the end (length)"),
    ],
)
async def test_an_end_that_is_another_is_a_divergence(
    recorded: RecordedRollout, script: Script, limit: int, at: int, recorded_text: str, replayed_text: str
) -> None:
    engine = ScriptedEngine(script)
    await engine.start(1.0)
    sampling = msgspec.structs.replace(recorded.sampling, max_new_tokens=limit)
    comparison = await _compared(engine, _with(recorded, sampling=sampling, stop=StopReason.STOP))
    assert comparison.divergence is not None
    assert comparison.divergence.position == at
    assert comparison.divergence.recorded.text.startswith(recorded_text)
    assert comparison.divergence.replayed.text.startswith(replayed_text)


async def test_what_was_not_ended_is_compared_as_far_as_it_is_there(engine: ScriptedEngine, tmp_path: Path) -> None:
    begun = await read_rollout(await opened(_events(tmp_path)[:-1]), SAMPLE)
    comparison = await _compared(engine, begun)
    assert (comparison.equal, comparison.tokens) == (True, SEAM)


async def test_weights_are_looked_for_where_they_may_lie(recorded: RecordedRollout, tmp_path: Path) -> None:
    published = recorded.weights[1]
    there = Path(published.url)
    moved = there.rename(tmp_path / "moved")
    with pytest.raises(RunNotFound, match=r"retrain small --save-version 1 --out DIR"):
        weight_folder(recorded, 1, [str(tmp_path / "nowhere")])
    assert weight_folder(recorded, 1, [str(moved)]) == str(moved)
    store = tmp_path / "store"
    store.mkdir()
    back = moved.rename(store / there.name)
    assert weight_folder(recorded, 1, [str(store)]) == str(back)
    with pytest.raises(RunNotFound, match="weight version 1"):
        weight_folder(recorded, 1, [str(tmp_path / "weights" / f"v000000-{recorded.weights[0].digest[:12]}")])


async def test_who_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="no rollout of sample 'train-0-000009-s0'"):
        await read_rollout(await opened(_events(tmp_path)), "train-0-000009-s0")


async def test_the_command_tells_and_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["replay-rollout", made.archived(tmp_path / "archive", made.recorded(*_events(tmp_path))), SAMPLE]
    monkeypatch.setattr(command, "SglangEngine", lambda settings, version: ScriptedEngine(version=version))
    assert await asyncio.to_thread(main, words) == 0
    text = capsys.readouterr().out
    assert "all 10 the same" in text
    assert "equal" in text
    monkeypatch.setattr(command, "SglangEngine", lambda settings, version: Rewritten(version=version))
    assert await asyncio.to_thread(main, [*words, "--force", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["equal"], report["max_difference"], report["engine"]["device"]) == (False, 0.25, "cpu")
    assert await asyncio.to_thread(main, [*words, "--force", "--tolerance", "0.3"]) == 0

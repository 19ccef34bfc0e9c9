"""A real run whose rollouts have two turns and a tool: the function of docs/generate-functions.md."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schemas.arrays import unpack
from schemas.rollouts import RolloutCompleted, RolloutFailed, StopReason
from schemas.runs import RunFinished
from schemas.turns import TurnRecorded, TurnRole
from slime_events.analysis.audit.audit import Audit
from tests.run.tiny import events_of, of, run_with, tiny

pytestmark = pytest.mark.real
CALCULATOR = Path(__file__).parents[2] / "examples" / "calculator.py"


def test_two_turns_with_a_calculator(tmp_path: Path) -> None:
    settings = tiny(
        tmp_path,
        "turns",
        rollout={"num_rollout": 2, "custom_generate_function_path": str(CALCULATOR), "max_turns": 2},
        reward={"rm_type": None, "custom_rm_path": str(CALCULATOR)},
    )
    summary = asyncio.run(run_with(settings))
    assert (summary["phase"], summary["steps"]) == ("finished", 2)
    events = events_of(tmp_path / "runs" / "turns")
    assert len(of(events, RunFinished)) == 1
    assert not of(events, RolloutFailed)
    turns: dict[str, list[TurnRecorded]] = {}
    for turn in of(events, TurnRecorded):
        turns.setdefault(turn.sample, []).append(turn)
    done = {event.sample: event for event in of(events, RolloutCompleted)}
    whole = [sample for sample, some in turns.items() if len(some) == 3]
    assert len(whole) > len(done) / 2, "most first answers end by themselves"
    for sample in whole:
        first, tool, second = turns[sample]
        assert [turn.role for turn in turns[sample]] == [TurnRole.ASSISTANT, TurnRole.TOOL, TurnRole.ASSISTANT]
        assert tool.call is not None
        assert tool.result == eval(tool.call.arguments["expression"])
        assert first.stop is StopReason.STOP
        assert second.extends == first.index
        assert done[sample].metadata == {"turns": 2}
        mask, log_probs = unpack(done[sample].loss_mask), unpack(done[sample].log_probs)
        assert mask.tolist() == [1] * first.length + [0] * second.observed.n + [1] * second.length
        assert (log_probs[mask == 0] == 0).all()
        assert (log_probs[mask == 1] <= 0).all()
    auditor = Audit("turns", fetch=unpack, files=False)
    for recorded in events:
        auditor.apply(recorded)
    assert auditor.finish().findings == []

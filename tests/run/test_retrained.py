"""A finished run, trained again from its archive alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.steps import StepCommitted
from slime_events.app.cli.main import main
from storage.weights.stored_version import verify
from tests.run.tiny import of
from tests.run.whole import STEPS, Finished

pytestmark = pytest.mark.real


def test_every_step_comes_out_bit_for_bit(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = str(finished.folder / "archive" / "whole")
    assert main(["retrain", archive, "--steps", ":3", "--save-version", "2", "--out", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["equal"] is True
    assert [step["step"] for step in facts["steps"]] == list(range(STEPS))
    committed = {step.version: step for step in of(finished.events, StepCommitted)}
    (folder,) = facts["saved"]
    assert verify(folder, committed[2].weights_digest).version == 2

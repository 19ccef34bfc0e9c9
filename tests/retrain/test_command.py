"""`slime-events retrain` on archives, by ranks whose weights are digests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from actors.offline.retrain_run import retrain
from slime_events.app.cli.main import main
from slime_events.core.config.settings import TrainSettings
from tests.retrain.changed import Care, as_archive, flip_reward
from tests.retrain.conftest import STEPS, Recorded
from tests.simulation.parts import ScriptedRanks


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A base checkpoint for ranks that need none."""

    @contextlib.asynccontextmanager
    async def scripted(settings: TrainSettings) -> AsyncIterator[ScriptedRanks]:
        yield ScriptedRanks()

    monkeypatch.setattr("slime_events.app.cli.commands.retrain.retrain", partial(retrain, make_ranks=scripted))
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


def test_an_archive_alone_is_enough(
    recorded: Recorded, base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_archive(recorded.doctored(), str(tmp_path / "archive"))
    assert main(["retrain", f"{tmp_path}/archive/sim", "--hf-checkpoint", base]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:5] for line in lines[:STEPS]] == [
        ["step", str(step), "->", f"v{step + 1}", "equal"] for step in range(STEPS)
    ]
    assert lines[-1].startswith(f"{STEPS} steps re-trained, every digest equal, ")


def test_a_difference_is_exit_code_1_and_named(
    recorded: Recorded, base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = recorded.doctored()
    flip_reward(log, 3, Care.COMMITTED)
    as_archive(log, str(tmp_path / "archive"))
    command = ["retrain", f"{tmp_path}/archive/sim", "--hf-checkpoint", base]
    assert main(command) == 1
    assert "step    3 -> v4     DIFFERS" in capsys.readouterr().out
    assert main([*command, "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["equal"], facts["first_difference"]) == (False, 3)
    assert [fact["compared"] for fact in facts["steps"][3]["differences"]] == ["weights digest", "optimizer digest"]

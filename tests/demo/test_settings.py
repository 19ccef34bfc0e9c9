"""The demos' settings: consistent with each other and with the files they name."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from slime_events.app.demo import arithmetic
from slime_events.app.demo.settings import demo_settings, prepare_demo, smollm2_settings
from slime_events.core.config.combinations import impossible
from slime_events.core.config.derivations import derive
from slime_events.core.config.settings import TrainSettings

both = pytest.mark.parametrize(
    "settings", [demo_settings(Path("d")), smollm2_settings(Path("d"), Path("c"))], ids=["demo", "smollm2"]
)


@both
def test_settings_are_valid_and_fit(settings: TrainSettings) -> None:
    again = msgspec.json.decode(msgspec.json.encode(settings), type=TrainSettings)
    assert again == settings
    assert impossible(derive(settings)[0]) == []
    rollout, trainer = settings.rollout, settings.trainer
    assert rollout.rollout_batch_size * rollout.n_samples_per_prompt == (trainer.global_batch_size or 0) * (
        trainer.num_steps_per_rollout or 0
    )
    assert settings.engine.hf_checkpoint == trainer.hf_checkpoint
    assert (rollout.num_rollout or 0) % (settings.evaluation.eval_interval or 1) == 0  # the last version is evaluated
    assert settings.evaluation.eval_temperature == 0.0


def test_prepared_files_are_there(tmp_path: Path) -> None:
    settings = prepare_demo(tmp_path)
    assert Path(settings.data.prompt_data or "").is_file()
    assert Path(settings.evaluation.eval_prompt_data[1]).is_file()
    assert (Path(settings.engine.hf_checkpoint) / "config.json").is_file()
    rows = Path(settings.data.prompt_data or "").read_text(encoding="utf-8").splitlines()
    assert len(rows) >= (settings.rollout.num_rollout or 0) * settings.rollout.rollout_batch_size


def test_arithmetic_carries_its_entry_and_holds_out(tmp_path: Path) -> None:
    train, evaluation = (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in arithmetic.write_data(tmp_path)
    )
    contents = [{row["messages"][-1]["content"] for row in rows} for rows in (train, evaluation)]
    assert all(row["messages"][:-1] == list(arithmetic.EXAMPLE) for row in train + evaluation)
    assert not contents[0] & contents[1]
    assert arithmetic.EXAMPLE[1]["content"] not in contents[1]
    assert len(contents[0]) + len(contents[1]) == 121
    entry = train[0]["metadata"]["entry"]
    assert entry["answer"] == train[0]["label"]
    assert entry["metadata"]["source_dataset"] == arithmetic.GENERATOR

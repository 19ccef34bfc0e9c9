"""After which steps a checkpoint is saved: slime's rule, which trainer, conductor and ranks share."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_events.app.cli.commands.train import resolve_epochs
from slime_events.core.config.derivations import derive
from slime_events.core.config.save_steps import SaveSteps
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.plugins.slime.helpers import should_run_periodic_action

few = st.integers(1, 12)


@given(few, few | st.none(), st.integers(1, 40))
def test_it_is_the_rule_that_slime_s_plugins_ask(every: int, epoch: int | None, steps: int) -> None:
    saves = SaveSteps(every, epoch, steps)
    for step in range(steps):
        assert saves.due(step + 1) is should_run_periodic_action(step, every, epoch, steps)


@given(few | st.none(), few | st.none(), few | st.none(), st.integers(0, 40))
def test_the_newest_is_the_last_that_is_due(every: int | None, epoch: int | None, last: int | None, to: int) -> None:
    saves = SaveSteps(every, epoch, last)
    assert saves.newest(to) == max((version for version in range(1, to + 1) if saves.due(version)), default=0)


@given(few, st.integers(1, 40))
def test_a_run_of_an_earlier_version_keeps_its_rule(every: int, steps: int) -> None:
    recorded = msgspec.convert({"save_interval": every}, TrainerSettings)
    assert [v for v in range(steps + 1) if recorded.saves.due(v)] == list(range(every, steps + 1, every))


def _settings(tmp_path: Path, rows: int, **trainer: object) -> TrainSettings:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n' * rows)
    settings = TrainSettings()
    return msgspec.structs.replace(
        settings,
        data=msgspec.structs.replace(settings.data, prompt_data=str(path)),
        rollout=msgspec.structs.replace(settings.rollout, num_epoch=3, rollout_batch_size=4),
        trainer=msgspec.structs.replace(settings.trainer, **trainer),
    )


def test_epochs_end_with_a_checkpoint(tmp_path: Path) -> None:
    resolved, _ = resolve_epochs(derive(_settings(tmp_path, 20, save_interval=3))[0])
    assert resolved.rollout.num_rollout == 15
    assert [v for v in range(16) if resolved.trainer.saves.due(v)] == [3, 5, 6, 9, 10, 12, 15]


def test_without_an_interval_nothing_is_saved(tmp_path: Path) -> None:
    resolved, _ = resolve_epochs(derive(_settings(tmp_path, 20))[0])
    assert not any(map(resolved.trainer.saves.due, range(16)))


@pytest.mark.parametrize("set_flags", [(), (("trainer", "save_last"),)])
def test_the_last_step_is_saved_but_where_another_was_named(set_flags: tuple[tuple[str, str], ...]) -> None:
    settings = TrainSettings()
    settings = msgspec.structs.replace(
        settings,
        rollout=msgspec.structs.replace(settings.rollout, num_rollout=7),
        trainer=msgspec.structs.replace(settings.trainer, save_interval=5, save_last=6),
    )
    assert derive(settings, set_flags)[0].trainer.save_last == (6 if set_flags else 7)

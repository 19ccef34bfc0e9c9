"""Folders of slime's launch scripts: Megatron's copy of the model, and a `--load` that nothing was saved into yet."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from schemas.errors import InvalidValue
from slime_events.app.launch.slime_folders import as_in_slime
from slime_events.core.config.paths import missing_paths
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from tests import made


def _settings(**trainer: object) -> TrainSettings:
    return made.settings(trainer=msgspec.convert(trainer, TrainerSettings))


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "Qwen3-4B"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


@pytest.mark.parametrize("name", ["ref_load", "load"])
@pytest.mark.parametrize("end", ["", "/"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_model_in_megatron_s_format_is_the_model(model: str, name: str, end: str, is_there: bool) -> None:
    if is_there:
        Path(model + "_torch_dist", "iter_0000001").mkdir(parents=True)
    settings, notes = as_in_slime(_settings(hf_checkpoint=model, **{name: model + "_torch_dist" + end}))
    assert settings.trainer == _settings(hf_checkpoint=model).trainer
    assert len(notes) == 1
    assert name in notes[0]


def test_a_hugging_face_folder_of_that_name_is_read(model: str) -> None:
    other = Path(model + "_torch_dist")
    other.mkdir()
    (other / "config.json").write_text("{}")
    settings = _settings(hf_checkpoint=model, ref_load=str(other))
    assert as_in_slime(settings) == (settings, [])


@pytest.mark.parametrize("is_there", [False, True])
def test_nothing_was_saved_yet(model: str, tmp_path: Path, is_there: bool) -> None:
    folder = tmp_path / "saved"
    if is_there:
        folder.mkdir()
    settings, notes = as_in_slime(_settings(hf_checkpoint=model, load=str(folder), save=f"{folder}/"))
    assert (settings.trainer.load, settings.trainer.save, len(notes)) == (None, f"{folder}/", 1)


def test_what_is_none_of_these_stays_and_is_refused_later(model: str, tmp_path: Path) -> None:
    (tmp_path / "saved" / "v000003").mkdir(parents=True)
    for other in (
        _settings(hf_checkpoint=model, load=str(tmp_path / "nowhere"), save=str(tmp_path / "saved")),
        _settings(hf_checkpoint=model, load=str(tmp_path / "saved"), save=str(tmp_path / "saved")),
        _settings(hf_checkpoint=model, ref_load=str(tmp_path / "Qwen3-8B_torch_dist")),
    ):
        assert as_in_slime(other) == (other, [])


def test_a_run_begins_with_the_reference_until_something_was_saved(model: str, tmp_path: Path) -> None:
    reference, saved = tmp_path / "sft_torch_dist", str(tmp_path / "saved")
    reference.mkdir()
    (reference / "latest_checkpointed_iteration.txt").write_text("release")
    for load in ({"load": saved, "save": saved, "ckpt_step": 3}, {}):
        settings_before = _settings(hf_checkpoint=model, ref_load=str(reference), ref_ckpt_step=5, **load)
        settings, notes = as_in_slime(settings_before)
        trainer = settings.trainer
        assert (trainer.load, trainer.ckpt_step, trainer.load_optim) == (str(reference), 5, False)
        assert trainer.ref_load == str(reference)
        assert len(notes) == 1
        assert f"begins with ref_load {reference}" in notes[0]
    assert missing_paths(settings) == missing_paths(_settings(hf_checkpoint=model))


def test_a_run_does_not_begin_with_a_reference_that_is_not_there(model: str, tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    with pytest.raises(InvalidValue, match=r"--ref-load .*sft_torch_dist does not exist"):
        as_in_slime(_settings(hf_checkpoint=model, ref_load=str(tmp_path / "sft_torch_dist"), load=saved, save=saved))


@pytest.mark.parametrize("has_reference", [False, True])
def test_a_reference_that_nobody_reads_may_be_missing(model: str, has_reference: bool) -> None:
    settings = _settings(hf_checkpoint=model, ref_load=model + "-elsewhere")
    algorithm = msgspec.structs.replace(settings.algorithm, use_kl_loss=has_reference)
    settings = msgspec.structs.replace(settings, algorithm=algorithm)
    problems = [problem for problem in missing_paths(settings) if problem.startswith("ref_load")]
    assert len(problems) == has_reference

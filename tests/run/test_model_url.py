"""A run whose model is at a URL: it is recorded as given, and read from this host's copy."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from schemas.errors import InvalidValue
from schemas.runs import RunStarted
from schemas.steps import StepCommitted
from slime_events.app.cli.commands.train import resolve
from slime_events.app.launch.run import Launch
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.run.local_models import LocalModels
from storage.folders.cache import FOLDER
from storage.object_store import ObjectFolder
from storage.weights import model_copy
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import Watching, events_of, of, run_with, tiny

_numbers = itertools.count()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The demo's model, uploaded."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(model_copy, "RETRY_S", 0.0)
    objects = ObjectFolder(f"memory://run-models-{next(_numbers)}/model")
    model = Path(tiny(tmp_path / "data", "none").trainer.hf_checkpoint)
    for path in model.rglob("*"):
        if path.is_file():
            objects.replace(str(path.relative_to(model)), path.read_bytes())
    return objects.url


def test_a_run_from_a_url(tmp_path: Path, url: str) -> None:
    digests = []
    at = {"engine": {"hf_checkpoint": url}, "trainer": {"hf_checkpoint": url, "load": url}}
    for name, components in (("local", {}), ("remote", at)):
        with cheap_parts(Parts()):
            asyncio.run(run_with(tiny(tmp_path / name, "demo", **components)))
        events = events_of(tmp_path / name / "runs" / "demo")
        digests.append([step.weights_digest for step in of(events, StepCommitted)])
    assert digests[0] == digests[1]
    (started,) = of(events, RunStarted)
    assert started.settings["trainer"]["load"] == started.settings["trainer"]["hf_checkpoint"] == url
    assert started.settings["engine"]["hf_checkpoint"] == url


def test_the_settings_stay_as_given(tmp_path: Path, url: str) -> None:
    settings = tiny(tmp_path, "demo", engine={"hf_checkpoint": url}, trainer={"hf_checkpoint": url, "ref_load": url})
    models = LocalModels.of(settings)
    (path,) = set(models.paths.values())
    assert (Path(path) / "config.json").is_file()
    assert models.settings.trainer.ref_load == models.settings.engine.hf_checkpoint == path
    assert models.recorded(models.settings) == settings
    assert resolve(ParsedTrain(settings, ())) == settings
    (place,) = models.places()
    assert (place.url, place.expected) == (path, url)


@pytest.mark.parametrize("field", ["load", "ref_load", "hf_checkpoint", "critic_load", "opd_teacher_load"])
def test_what_is_not_there_is_refused_before_the_run(tmp_path: Path, url: str, field: str) -> None:
    wrong = f"{url}-other"
    settings = tiny(tmp_path, "demo", trainer={field: wrong})
    for begin in (lambda: Launch(settings, Watching()), lambda: resolve(ParsedTrain(settings, ()))):
        with pytest.raises(InvalidValue, match=f"--{field.replace('_', '-')}: {wrong} does not exist or is empty"):
            begin()
    assert not (tmp_path / "runs").exists()


def test_a_first_start_may_load_where_it_saves(tmp_path: Path, url: str) -> None:
    """In slime's scripts both are one folder, which is empty at the first start."""
    empty = f"{url}-own"
    settings = tiny(tmp_path, "demo", trainer={"load": empty, "save": empty})
    assert LocalModels.of(settings).settings.trainer.load == empty
    assert resolve(ParsedTrain(settings, ())).trainer.load is None

"""`LocalModels`: replaces the URLs of models in a run's settings by the paths of this machine's copies.

A run records the URLs. Its processes get the paths, which are the same on each machine if their caches are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec.structs import replace

from schemas.doc import doc
from schemas.errors import CheckpointMismatch, InvalidValue, StorageError
from schemas.trust import check_trusted
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.places import cache_variables
from slime_events.core.run.shared_places import PlaceKind, SharedPlace
from storage.folders.places import is_remote
from storage.weights.model_copy import held_model, is_there

OF_TRAINER = ("hf_checkpoint", "load", "ref_load", "opd_teacher_load", "critic_load")
"""Settings of the component `trainer` that name a model or checkpoint. `engine` has the first, too."""


@dataclass(frozen=True, slots=True)
class LocalModels:
    """Settings in which each URL of a model is a path of this machine."""

    settings: TrainSettings
    flags: Annotated[dict[str, str], doc("Flag of each URL.")]
    paths: Annotated[dict[str, str], doc("Path of each URL.")]

    @classmethod
    def of(cls, settings: TrainSettings) -> LocalModels:
        """Download the models at URLs, unless this machine has them.

        Raises InvalidValue with flag and reason, and UntrustedText for a URL that only an archive names.

        A `load` that is also `save` and has nothing yet stays a URL: a run may begin so, as in slime.
        """
        trainer, engine = settings.trainer, settings.engine
        named = {f"--{name.replace('_', '-')}": getattr(trainer, name) for name in OF_TRAINER}
        urls = {url: flag for flag, url in (*named.items(), ("--hf-checkpoint", engine.hf_checkpoint)) if url}
        urls = {url: flag for url, flag in urls.items() if is_remote(url)}
        load = trainer.load
        if load and load in urls and load == trainer.save and not is_there(load):
            del urls[load]
        paths = dict[str, str]()
        if urls:
            os.environ.update(cache_variables(settings.run))
        for url, flag in urls.items():
            check_trusted(url)
            try:
                paths[url] = str(held_model(url))
            except (CheckpointMismatch, StorageError) as error:
                raise InvalidValue(f"{flag}: {error}") from error
        return cls(_with(settings, paths), urls, paths)

    def recorded(self, settings: TrainSettings) -> TrainSettings:
        """Return settings, derived from these ones, with the URLs again."""
        return _with(settings, {path: url for url, path in self.paths.items()})

    def places(self) -> list[SharedPlace]:
        """Return what each machine must have a copy of."""
        return [
            SharedPlace(flag=self.flags[url], url=path, kind=PlaceKind.COPIED, expected=url)
            for url, path in self.paths.items()
        ]


def _with(settings: TrainSettings, others: Mapping[str, str]) -> TrainSettings:
    """Return the settings with other texts for some models."""
    trainer, engine = settings.trainer, settings.engine
    changed = {name: others[path] for name in OF_TRAINER if (path := getattr(trainer, name)) in others}
    checkpoint = others.get(engine.hf_checkpoint, engine.hf_checkpoint)
    return replace(settings, trainer=replace(trainer, **changed), engine=replace(engine, hf_checkpoint=checkpoint))

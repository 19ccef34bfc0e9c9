"""`served_model`: reads the model that a run's clients train from its checkpoint and its log."""

import json
from pathlib import Path

from schemas.runs import RunStarted
from schemas.subjects import about
from serve_apps.http.tinker.calls import Served
from slime_events.core.checkpoint.context import context_of
from slime_events.core.checkpoint.vocabulary import HIGHEST, vocabulary_of
from slime_events.core.config.settings import TrainSettings
from storage.log import Readable

LONGEST = 4096
"""Limit of a sequence in tokens if the model's context is unknown."""


async def served_model(log: Readable, settings: TrainSettings) -> Served:
    """Return the model. Its name is the path of its folder, where the SDK's get_tokenizer finds the tokenizer."""
    folder = Path(settings.engine.hf_checkpoint).absolute()
    config = json.loads((folder / "config.json").read_text())
    first = 0
    async for recorded in log.read(1, about(log.run, "run", "run")):
        event = recorded.envelope.event
        if isinstance(event, RunStarted):
            first = event.branched.version if event.branched else 0
            break
    return Served(
        name=str(folder),
        short=folder.name,
        architecture=(config.get("architectures") or [config.get("model_type", "")])[0],
        vocabulary=vocabulary_of(folder) or HIGHEST + 1,
        longest=context_of(settings) or LONGEST,
        first=first,
        seed=settings.rollout.rollout_seed,
    )

"""--num-epoch as --num-rollout: how many steps so many passes over the prompt data are."""

from __future__ import annotations

from msgspec.structs import replace

from schemas.errors import InvalidValue
from slime_events.core.config.derivations import derive
from slime_events.core.config.settings import TrainSettings


def resolve_epochs(settings: TrainSettings) -> tuple[TrainSettings, str | None]:
    """`num_rollout = num_epoch * rows // rollout_batch_size`, slime's rule, with a sentence that says so.

    Opens the prompt data and counts its rows. Settings without num_epoch come back as they are. Raises DataError,
    TooManyBadLines, InvalidValue (less than one step).
    """
    epochs, batch = settings.rollout.num_epoch, settings.rollout.rollout_batch_size
    if epochs is None or settings.rollout.num_rollout is not None:
        return settings, None
    rows = _rows(settings)
    steps = epochs * rows // batch
    if steps < 1:
        raise InvalidValue(
            f"num_epoch {epochs} over {rows} rows is less than one step of rollout_batch_size {batch}: lower it"
        )
    rollout = replace(settings.rollout, num_rollout=steps, num_epoch=None)
    resolved, _ = derive(replace(settings, rollout=rollout))
    return resolved, f"num_epoch {epochs} over {rows} rows is num_rollout {steps}."


def _rows(settings: TrainSettings) -> int:
    from slime_events.loop.prompts.source import PromptSource

    # A template needs the tokenizer, and counting needs no template.
    return len(PromptSource(replace(settings.data, apply_chat_template=False), settings.rollout.rollout_seed))

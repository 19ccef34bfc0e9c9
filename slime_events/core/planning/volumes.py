"""`Volumes`: what a run writes: log, archive, weight versions, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from slime_events.core.config.derivations import GPU_SAVE_INTERVAL
from slime_events.core.config.settings import TrainSettings
from slime_events.core.planning.assumptions import Assumptions
from slime_events.core.planning.model import ModelShape, TokenLoad
from slime_events.core.planning.needs import Needs
from slime_events.core.planning.speed import Speed

GIGA, DAY_S = 1e9, 86_400.0
CHECKPOINT_BYTES = 14
"""Bytes of a parameter in a checkpoint: the weights in bfloat16, and Adam's float32 copy and moments (2 + 12)."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """Bytes and seconds. A day is a day of training."""

    log_bytes_s: Annotated[float, doc("Bytes of events per second.")]
    archive_bytes_s: float
    version_bytes: Annotated[int, doc("Bytes of a weight version.")]
    version_s: Annotated[float, doc("Seconds from trained weights until an engine has them.")]
    steps_a_day: float
    log_a_day: Annotated[float, doc("Bytes that the log grows in a day.")]
    archive_a_day: float
    weights_kept: Annotated[float, doc("Bytes of weight versions on disk after a day.")]
    checkpoints_kept: Annotated[float, doc("Bytes of checkpoints on disk after a day.")]

    @property
    def disk_a_day(self) -> float:
        """Bytes on disk after a day."""
        return self.log_a_day + self.archive_a_day + self.weights_kept + self.checkpoints_kept


def volumes_of(
    settings: TrainSettings, needs: Needs, shape: ModelShape, load: TokenLoad, speed: Speed, assumed: Assumptions
) -> Volumes:
    """Return what a run writes. Over a step, engines generate the tokens of the step's samples."""
    samples = settings.rollout.rollout_batch_size * settings.rollout.n_samples_per_prompt
    step_s = max(speed.step_s, 1e-9)
    log = log_bytes(settings, load, speed, assumed) * samples / step_s if needs.engines + needs.external else 0.0
    version = 2 * shape.parameters
    moved = version_s(version, assumed) if needs.ranks else 0.0
    steps = DAY_S / (step_s + (moved if needs.shared or settings.rollout.max_staleness == 0 else 0.0))
    trainer = settings.trainer
    published = steps / trainer.update_weights_interval if needs.ranks else 0.0
    kept = min(published, trainer.keep_weights) if trainer.keep_weights else published
    if trainer.keep_weights and trainer.keep_weights_every:
        kept += published / trainer.keep_weights_every
    saved = steps / (trainer.save_interval or GPU_SAVE_INTERVAL) if needs.ranks else 0.0
    checkpoints = min(saved, trainer.keep_checkpoints) if trainer.keep_checkpoints else saved
    return Volumes(
        log_bytes_s=log,
        archive_bytes_s=log * assumed.archive_share,
        version_bytes=version,
        version_s=moved,
        steps_a_day=steps,
        log_a_day=log * DAY_S,
        archive_a_day=log * assumed.archive_share * DAY_S,
        weights_kept=(kept + (checkpoints if trainer.keep_weights else 0)) * version,
        checkpoints_kept=checkpoints * CHECKPOINT_BYTES * shape.parameters,
    )


def log_bytes(settings: TrainSettings, load: TokenLoad, speed: Speed, assumed: Assumptions) -> float:
    """Return the bytes of events of one sample: its prompt, and its response in chunks.

    A chunk is appended after --chunk-tokens tokens, or after --chunk-seconds.
    """
    chunk = min(float(settings.engine.chunk), max(1.0, speed.per_sample * settings.engine.chunk_s))
    prompt = 4 * (load.mean - load.response)
    return prompt + load.response * assumed.token_bytes + load.response / chunk * assumed.chunk_bytes


def version_s(version: int, assumed: Assumptions) -> float:
    """Return the seconds of a weight version through files: to the host, to the disk, and into engines, which hash it.

    Hashes of the writer overlap with its writes. All ranks and engines use one disk, one after the other.
    """
    seconds = 1 / assumed.host_copy + 1 / min(assumed.disk_write, assumed.hashing)
    return version / GIGA * (seconds + 1 / assumed.hashing + 1 / assumed.disk_read)

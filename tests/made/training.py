"""Events of training: batches, steps, weights and checkpoints. Step s trains version s + 1."""

from __future__ import annotations

from typing import Any

from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsPublished


def sealed(step: int = 0, samples: tuple[str, ...] = (), **fields: Any) -> BatchSealed:
    plain: dict[str, Any] = {"groups": (), "rewards": (), "raw_rewards": (), "digest": "b"}
    return BatchSealed(step=step, samples=samples, **(plain | fields))


def committed(step: int = 0, **fields: Any) -> StepCommitted:
    plain: dict[str, Any] = {
        "batch_digest": "b",
        "parent_version": step,
        "version": step + 1,
        "weights_digest": f"d{step + 1}",
        "optimizer_digest": f"o{step + 1}",
        "samples": 1,
        "tokens": 1,
    }
    return StepCommitted(step=step, **(plain | fields))


def published(version: int = 0, parent: int | None = None, **fields: Any) -> WeightsPublished:
    """Return a publication. Give the parent of a version that was trained."""
    return WeightsPublished(
        version=version, parent=parent, **({"url": "u", "digest": f"d{version}", "bytes": 1} | fields)
    )


def activated(version: int = 0, engine: str = "e", **fields: Any) -> WeightsActivated:
    plain: dict[str, Any] = {"digest": f"d{version}", "seconds": 0.1}
    return WeightsActivated(version=version, engine=engine, **(plain | fields))


def saved(version: int, **fields: Any) -> CheckpointSaved:
    plain = {"url": "u", "weights_digest": f"d{version}", "optimizer_digest": f"o{version}"}
    return CheckpointSaved(version=version, **(plain | fields))

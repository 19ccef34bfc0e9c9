"""A sample's share of the loss in *Step*, against the weights by which the objective multiplies its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from schemas.arrays import pack
from schemas.event import Event
from slime_events.algorithms.objective import token_weights
from slime_events.algorithms.segments import Segments
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.run.run_settings import settings_in_force
from tests import made
from tests.console.served import Memory, client_of, get
from tests.lineage.opened import with_algorithm

GROUPS = ("train-0-000000", "train-0-000001")
MASKS: dict[str, list[int]] = {
    f"{GROUPS[0]}-s0": [1, 1, 1, 1],
    f"{GROUPS[0]}-s1": [0, 1],
    f"{GROUPS[1]}-s0": [1, 0, 1],
    f"{GROUPS[1]}-s0-1": [1, 1, 1, 1, 1],  # made by the same rollout
    f"{GROUPS[1]}-s1": [1, 1],  # removed from training
}
SAMPLES = tuple(MASKS)
FURTHER, REMOVED = SAMPLES[3], SAMPLES[4]
ROLLOUT = {name: SAMPLES[2] if name == FURTHER else name for name in SAMPLES}
TRAINED = {name: [0] * len(mask) if name == REMOVED else mask for name, mask in MASKS.items()}


def _events(**sealed: Any) -> Sequence[Event]:
    events: list[Event] = [made.started({"rollout": {"num_rollout": 1}}), made.published(url="weights/0")]
    events += [made.submitted(group) for group in GROUPS]
    for name, mask in MASKS.items():
        if name != FURTHER:
            events.append(made.requested(name))
        events.append(
            made.completed(
                name, list(range(len(mask))), [-1.0] * len(mask), rollout="" if name != FURTHER else ROLLOUT[name],
                loss_mask=None if all(mask) else pack(np.asarray(mask, np.int8), "int8"),
            )
        )  # fmt: skip
    rewards = (1.0, -1.0, 0.5, 0.5, -0.5)
    plain: dict[str, Any] = {"groups": GROUPS, "rewards": rewards, "raw_rewards": rewards, "removed": (REMOVED,)}
    return [*events, made.sealed(0, **(plain | {"samples": SAMPLES} | sealed)), made.committed(0, samples=5)]


async def _run(*, per_token: bool = False, **sealed: Any) -> OpenedRun:
    events = _events(**sealed)
    opened = made.opened(await made.log(*events, run="a"), settings_in_force(events), "here")
    return with_algorithm(opened, calculate_per_token_loss=per_token)


async def _loss(run: OpenedRun) -> dict[str, Any]:
    async with client_of(Memory({"a": run})) as client:
        return dict((await get(client, "/api/runs/a/steps/0"))["loss"])


def _weights(names: Sequence[str], *, per_token: bool) -> list[float]:
    """The sum of each sample's weights in the objective."""
    segments = Segments.of([torch.tensor(TRAINED[name]) for name in names])
    sums = [float(sum(sum(TRAINED[one]) for one in SAMPLES if ROLLOUT[one] == ROLLOUT[name])) for name in names]
    weights = token_weights(segments, per_token=per_token, rollout_denoms=sums)
    return [float(part.sum()) for part in weights.split([len(TRAINED[name]) for name in names])]


@pytest.mark.parametrize("per_token", [False, True])
async def test_shares_are_those_of_the_objective(*, per_token: bool) -> None:
    loss = await _loss(await _run(per_token=per_token))
    weights = _weights(SAMPLES, per_token=per_token)
    assert loss["normalisation"] == ("tokens" if per_token else "rollouts")
    assert [one["trained"] for one in loss["samples"]] == [sum(mask) for mask in TRAINED.values()]
    assert [one["share"] for one in loss["samples"]] == pytest.approx([one / sum(weights) for one in weights])
    assert [one["advantage"] is None for one in loss["samples"]] == [name == REMOVED for name in SAMPLES]
    assert loss["optimizer_steps"] == 1


async def test_a_share_is_that_of_its_optimizer_step_and_what_fills_none_has_none() -> None:
    run = await _run()
    trainer = msgspec.structs.replace(run.settings.trainer, global_batch_size=1, num_steps_per_rollout=3)
    settings = msgspec.structs.replace(run.settings, trainer=trainer)
    loss = await _loss(made.opened(run.log, settings, run.where))
    assert [one["optimizer_step"] for one in loss["samples"]] == [0, 1, 2, 2, None]
    assert [one["share"] for one in loss["samples"]] == pytest.approx([1.0, 1.0, 2 / 7, 5 / 7, None])


@pytest.mark.parametrize(
    "changes", [{"loss_type": "custom_loss"}, {"custom_pg_loss_reducer_function_path": "own:reducer"}]
)
async def test_what_a_function_decides_is_not_shown_as_known(changes: dict[str, str]) -> None:
    loss = await _loss(with_algorithm(await _run(), **changes))
    assert loss["normalisation"] == "own"
    assert {one["share"] for one in loss["samples"]} == {None}
    assert loss["samples"][0]["trained"] == 4


async def test_a_sample_without_a_rollout_leaves_the_shares_unknown() -> None:
    loss = await _loss(await _run(samples=(*SAMPLES[:4], "train-0-000001-s7"), removed=()))
    assert [one["trained"] for one in loss["samples"]] == [4, 1, 2, 5, None]
    assert {(one["share"], one["advantage"]) for one in loss["samples"]} == {(None, None)}


async def test_settings_that_weigh_tokens_otherwise_are_named() -> None:
    loss = await _loss(with_algorithm(await _run(), use_tis=True))
    assert loss["reweighed_by"] == ["use_tis"]
    assert loss["packing"]["micro_batch_size"] == 1

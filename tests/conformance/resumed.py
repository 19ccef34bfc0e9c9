"""One sample of a group under way when a step ends: asked for again by the conductor, gone on with by an engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.arrays import pack_log_probs, pack_tokens, unpack
from schemas.rollouts import (
    RolloutProgressed,
    RolloutRequested,
    RolloutSuspended,
    Sampling,
    StopReason,
    SuspendReason,
    WeightSpan,
)
from serve_apps.engine.engine import Delta, GenerateRequest
from serve_apps.rollout import Rollout
from slime_events.core.trajectory import Trajectories
from tests.conformance.case import UnknownShape

SAMPLE = "g0-s0"
VERSIONS = (4, 5)
"""Before the step boundary and behind it, where the case names none."""


def go_on(given: dict[str, Any]) -> dict[str, Any]:
    """What slime's `generate_and_rm` gives for a sample with a part of its response: request and sample, by its names.

    `tokens` is prompt and response so far, the last `response_length` of them; then `new_tokens` come.
    """
    tokens, length = given["tokens"], given["response_length"]
    added = next((given[name] for name in ("new_tokens", "generated", "output_tokens") if name in given), None)
    if added is None:
        raise UnknownShape(f"no new tokens in {sorted(given)}")
    limit = given.get("max_new_tokens", given.get("rollout_max_response_len", 10))
    before, after = (int(version) for version in given.get("weight_versions", VERSIONS))
    masks = bool(given.get("mask_offpolicy_in_partial_rollout", given.get("mask_offpolicy", False)))
    old = given.get("rollout_log_probs") or [-0.5] * length
    new = given.get("new_log_probs") or [-0.5] * len(added)
    request = _asked(tokens[: len(tokens) - length], limit)
    known = Trajectories(unpack)
    known.apply(request, 1)
    known.apply(_chunk(tokens[len(tokens) - length :], old, before), 2)
    rests = RolloutSuspended(sample=SAMPLE, attempt=0, length=length, reason=SuspendReason.STEP_BOUNDARY, engine="test")
    known.apply(rests, 3)
    trajectory = known.by_sample[SAMPLE]
    asked = GenerateRequest("r", unpack(request.prompt), request.sampling, 0, trajectory.tokens)
    again = _asked(tokens[: len(tokens) - length], limit, attempt=1, mask_older=masks)
    rollout = Rollout(again, trajectory, "test")
    if asked.left:
        spans = (WeightSpan(length, length + len(added), after),)
        rollout.add(Delta(np.array(added, np.int32), np.array(new, np.float32), spans))
    done = rollout.end(StopReason.STOP if asked.left else StopReason.LENGTH, given.get("text", ""))
    response = [*trajectory.tokens.tolist(), *unpack(done.tokens).tolist()]
    return {
        "max_new_tokens": asked.left,
        "request_max_new_tokens": asked.left,
        "input_ids": [*asked.prompt.tolist(), *asked.resume.tolist()],
        "tokens": [*asked.prompt.tolist(), *response],
        "response_length": len(response),
        "loss_mask": [1] * len(response) if done.loss_mask is None else unpack(done.loss_mask).tolist(),
        "rollout_log_probs": [*trajectory.log_probs.tolist(), *unpack(done.log_probs).tolist()],
        "weight_versions": [str(span.version) for span in done.spans],
        "status": "completed" if done.stop is StopReason.STOP else "truncated",
    }


def _asked(prompt: list[int], limit: int, *, attempt: int = 0, mask_older: bool = False) -> RolloutRequested:
    return RolloutRequested(
        sample=SAMPLE,
        group="g0",
        index=0,
        attempt=attempt,
        prompt=pack_tokens(prompt),
        sampling=Sampling(max_new_tokens=limit),
        seed=0,
        min_version=0,
        mask_older=mask_older,
    )


def _chunk(tokens: list[int], log_probs: list[float], version: int) -> RolloutProgressed:
    return RolloutProgressed(
        sample=SAMPLE,
        attempt=0,
        start=0,
        tokens=pack_tokens(tokens),
        log_probs=pack_log_probs(log_probs),
        spans=(WeightSpan(0, len(tokens), version),),
        engine="test",
    )

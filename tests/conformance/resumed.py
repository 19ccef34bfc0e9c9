"""One sample of a group under way when a step ends: asked for again by the conductor, gone on with by an engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.arrays import pack_log_probs, pack_tokens, unpack
from schemas.rollouts import (
    RolloutProgressed,
    RolloutRequested,
    Sampling,
    StopReason,
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

    `tokens` is prompt and response so far, the last `response_length` of them; then `new_tokens` come. The sample may
    stand in a dict of its own. One that is complete is not asked for again.
    """
    given = given | given.get("sample", {})
    tokens, length = given["tokens"], given["response_length"]
    complete = str(given.get("status", "aborted")).lower() in ("completed", "truncated")
    added = [] if complete else _first(given, "new_tokens", "generated_tokens", "output_tokens", "new")
    limit = _first(given, "max_new_tokens", "rollout_max_response_len", default=10)
    masks = bool(_first(given, "mask_offpolicy_in_partial_rollout", "mask_offpolicy", default=False))
    before, after = _versions(given)
    prompt, response = tokens[: len(tokens) - length], tokens[len(tokens) - length :]
    request = _asked(prompt, limit)
    known = Trajectories(unpack)
    known.apply(request, 1)
    known.apply(_chunk(response, given.get("rollout_log_probs") or [-0.5] * length, before), 2)
    trajectory = known.by_sample[SAMPLE]
    asked = GenerateRequest("r", unpack(request.prompt), request.sampling, 0, trajectory.tokens)
    rollout = Rollout(request if complete else _asked(prompt, limit, 1, masks), trajectory, "test")
    goes_on = not complete and asked.left > 0
    if goes_on:
        spans = (WeightSpan(length, length + len(added), after),)
        log_probs = given.get("new_log_probs") or [-0.5] * len(added)
        rollout.add(Delta(np.array(added, np.int32), np.array(log_probs, np.float32), spans))
    stops = goes_on or str(given.get("status", "")).lower() == "completed"
    done = rollout.end(StopReason.STOP if stops else StopReason.LENGTH, given.get("text", ""))
    whole = [*trajectory.tokens.tolist(), *unpack(done.tokens).tolist()]
    return {
        "max_new_tokens": asked.left,
        "request_max_new_tokens": asked.left,
        "input_ids": [*asked.prompt.tolist(), *asked.resume.tolist()],
        "tokens": [*asked.prompt.tolist(), *whole],
        "response_length": len(whole),
        "loss_mask": [1] * len(whole) if done.loss_mask is None else unpack(done.loss_mask).tolist(),
        "rollout_log_probs": [*trajectory.log_probs.tolist(), *unpack(done.log_probs).tolist()],
        "weight_versions": [str(span.version) for span in done.spans],
        "status": "completed" if done.stop is StopReason.STOP else "truncated",
        "reward": given.get("reward"),
    }


_NOTHING = object()


def _first(given: dict[str, Any], *names: str, default: Any = _NOTHING) -> Any:
    """Under the first of these names that is there."""
    found = next((given[name] for name in names if name in given), default)
    if found is _NOTHING:
        raise UnknownShape(f"none of {names} in {sorted(given)}")
    return found


def _versions(given: dict[str, Any]) -> tuple[int, int]:
    """Weight versions before the step boundary and behind it."""
    known = [int(version) for version in given.get("weight_versions", VERSIONS[:1])]
    more = given.get("new_weight_version", given.get("weight_version"))
    if more is not None:
        known = [known[0], int(more)]
    return known[0], known[1] if len(known) > 1 else known[0] + 1


def _asked(prompt: list[int], limit: int, attempt: int = 0, mask_older: bool = False) -> RolloutRequested:
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

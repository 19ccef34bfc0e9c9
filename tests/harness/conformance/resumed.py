"""A sample under way when a step ends: the conductor requests it again, and an engine continues it."""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.arrays import unpack
from schemas.rollouts import RolloutRequested, StopReason, WeightSpan
from serve_apps.engines.engine import Delta, GenerateRequest
from serve_apps.rollouts.rollout import Rollout
from slime_events.core.tokens.trajectory import Trajectories, Trajectory
from tests import made
from tests.harness.conformance import continued
from tests.harness.conformance.continued import Continued, Part

SAMPLE = "g0-s0"


def go_on(params: dict[str, Any]) -> dict[str, Any]:
    """Return request and sample by slime's names, as `generate_and_rm` gives them for a sample with a partial response.

    A complete sample is not requested again.
    """
    case = continued.read(params)
    trajectories = Trajectories(unpack)
    rooms: list[int] = []
    inputs: list[list[int]] = []
    for attempt, part in enumerate(case.parts or [Part([], [], 0)]):
        request = _request(case, attempt)
        trajectories.apply(request, 2 * attempt + 1)
        trajectory = trajectories.by_sample[SAMPLE]
        generation = GenerateRequest("r", unpack(request.prompt), request.sampling, 0, trajectory.tokens)
        rooms.append(generation.left)
        inputs.append([*generation.prompt.tolist(), *generation.resume.tolist()])
        rollout = Rollout(request, trajectory, "test")
        if generation.left > 0:
            rollout.add(_delta(part, trajectory))
        if part is not case.parts[-1]:
            trajectories.apply(rollout.chunk(), 2 * attempt + 2)
    stop = StopReason.STOP
    if case.status == "truncated" or case.finish == "length" or (rooms[-1] <= 0 and not case.is_complete):
        stop = StopReason.LENGTH
    done = rollout.end(stop, case.text)
    whole = [*trajectory.tokens.tolist(), *unpack(done.tokens).tolist()]
    mask = [1] * len(whole) if done.loss_mask is None else unpack(done.loss_mask).tolist()
    room = rooms[-1]
    return {
        **dict.fromkeys(("max_new_tokens", "request_max_new_tokens", "payload_max_new_tokens", "room"), room),
        "second_max_new_tokens": room,
        "rooms": rooms,
        "sampling_params": {"max_new_tokens": room},
        "payload": {"input_ids": inputs[-1], "sampling_params": {"max_new_tokens": room}},
        **dict.fromkeys(("input_ids", "request_input_ids", "payload_input_ids"), inputs[-1]),
        "tokens": [*inputs[0], *whole],
        "response_tokens": whole,
        "response_length": len(whole),
        "total_length": len(inputs[0]) + len(whole),
        "loss_mask": mask,
        "effective_response_length": sum(mask),
        "rollout_log_probs": [*trajectory.log_probs.tolist(), *unpack(done.log_probs).tolist()],
        "weight_versions": [str(span.version) for span in done.spans],
        "status": "completed" if done.stop is StopReason.STOP else "truncated",
        "reward": case.reward,
        "generated": not case.is_complete and room > 0,
    }


def _delta(part: Part, trajectory: Trajectory) -> Delta:
    length = trajectory.length
    spans = (WeightSpan(length, length + len(part.tokens), part.version),) if part.tokens else ()
    return Delta(np.array(part.tokens, np.int32), np.array(part.log_probs, np.float32), spans)


def _request(case: Continued, attempt: int) -> RolloutRequested:
    return made.requested(
        SAMPLE,
        attempt=attempt,
        prompt=case.prompt,
        max_new_tokens=case.limit,
        seed=0,
        mask_older=case.masks and attempt > 0,
    )

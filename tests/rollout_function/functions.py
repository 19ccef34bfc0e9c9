"""Rollout functions as slime's users write them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.sglang_rollout import GenerateState, abort, generate_and_rm_group, generate_rollout
from slime.utils.async_utils import run
from slime.utils.types import Sample

CALLED: list[Any] = []
"""What the functions of this process note."""
GENERATING: list[threading.Event] = []
"""Events of tests: the last is set when the log has tokens of the samples that `partial` aborts."""


def external(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnTrainOutput:
    """Answers of another system: tokens and rewards of its own, no engine."""
    groups = data_source.get_samples(args.rollout_batch_size)
    for group in groups:
        for number, sample in enumerate(group):
            response = [65 + number, 66, 67 + rollout_id]
            sample.tokens = [ord(letter) for letter in sample.prompt] + response
            sample.response, sample.response_length = "".join(map(chr, response)), len(response)
            sample.rollout_log_probs, sample.reward = [-0.5] * 3, float(number % 2)
            sample.status = Sample.Status.COMPLETED
    return RolloutFnTrainOutput(groups, {"rollout/agents": 7, "note": "not a number", "minutes": 0.5})


async def wrapped(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """slime's own generation, with other rewards, and tokens that are not trained on."""
    assert evaluation is False
    state = GenerateState(args)
    groups = data_source.get_samples(args.rollout_batch_size)
    CALLED.append(("wrapped", rollout_id, [group[0].group_index for group in groups]))
    for place, group in enumerate(groups):
        groups[place] = await generate_and_rm_group(args, group, state.sampling_params.copy(), evaluation=False)
        for sample in groups[place]:
            sample.reward = float(sample.tokens[-1] % 2)
            sample.loss_mask[0] = 0
    return groups


def looped(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """slime's loop, and one more metric."""
    output = generate_rollout(args, rollout_id, data_source, evaluation)
    output.metrics = {**(output.metrics or {}), "rollout/mine": rollout_id}
    return output


async def partial(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Aborts a group of the first step and gives it back; the second step continues it."""
    state = GenerateState(args)
    group, *others = await asyncio.to_thread(data_source.get_samples, 1 if rollout_id else 2)
    if rollout_id == 0:
        going = asyncio.create_task(generate_and_rm_group(args, group, dict(state.sampling_params)))
        await asyncio.to_thread(GENERATING[-1].wait)
        await abort(args, rollout_id)
        data_source.add_samples([await going])
        state.reset()
        (group,) = others
    return [await generate_and_rm_group(args, group, dict(state.sampling_params))]


def own_prompts(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> list[Sample]:
    """A plain list of samples that no prompt was drawn for; three groups in the first step, one in others."""
    count = 3 if rollout_id == 0 else 1
    return [
        Sample(
            group_index=group,
            prompt="own",
            tokens=[111, 119, 110, 48 + group, 49],
            response="01"[:2],
            response_length=2,
        )
        for group in range(count)
        for _ in range(2)
    ]


def numbered(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnTrainOutput:
    """Return what `external` does; note the call, and the numbers of its samples."""
    numbers: list[Any] = []
    CALLED.append(("numbered", rollout_id, numbers))
    output = external(args, rollout_id, data_source)
    numbers += [(sample.group_index, sample.index) for group in output.samples for sample in group]
    return output


def rebuilt(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Return new samples instead of those that it drew, which say whose they are by their group's number alone. One of
    three groups is given back.
    """
    output = external(args, rollout_id, data_source)
    extra = data_source.get_samples(1)
    CALLED.append(("rebuilt", rollout_id, [group[0].group_index for group in [*output.samples, *extra]]))
    data_source.add_samples(extra)
    names = ("group_index", "tokens", "response", "response_length", "reward", "status")
    return [[Sample(**{name: getattr(sample, name) for name in names}) for sample in group] for group in output.samples]


def with_a_port(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Return what `external` does, with an engine behind a port of its own, which it notes."""
    CALLED.append(("with_a_port", rollout_id, int(args.sglang_router_port)))
    return external(args, rollout_id, data_source)


def picky(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Draws three groups more than a step has: returns some, gives one back, loses one."""
    groups = data_source.get_samples(args.rollout_batch_size + 2)
    CALLED.append(("picky", rollout_id, [(group[0].prompt, len(group[0].response)) for group in groups]))
    for group in groups:
        for sample in group:
            sample.tokens = [ord(letter) for letter in sample.prompt] + [65, 66]
            sample.response, sample.response_length, sample.reward = "AB", 2, 1.0
            sample.metadata["step"] = rollout_id
    data_source.add_samples(groups[-2:-1])
    return groups[:-2]


def broken_sample(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """One sample of the first group came back without tokens."""
    output = external(args, rollout_id, data_source)
    output.samples[0][0].tokens, output.samples[0][0].response_length = [], 0
    return output


def nothing_usable(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    output = external(args, rollout_id, data_source)
    for group in output.samples:
        group[0].tokens = []
    return output


def raises(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    raise ValueError("the agents are away")


def hangs(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    time.sleep(60.0)


def no_groups(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    return []


def a_number(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    return 7


async def evaluates(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Two generations, and a second data set of figures alone."""
    from slime.rollout.sglang_rollout import generate

    state = GenerateState(args)
    samples = [await generate(args, Sample(prompt=text), dict(state.sampling_params)) for text in ("one", "two")]
    data = {"held": {"rewards": [1.0, 0.0], "truncated": [True, True], "samples": samples}, "other": {"rewards": [3]}}
    return RolloutFnEvalOutput(data, {"eval/seconds": 2.0})


def both(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    return run(evaluates(args, rollout_id, data_source)) if evaluation else external(args, rollout_id, data_source)


def wrapped_and_evaluated(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    return run((evaluates if evaluation else wrapped)(args, rollout_id, data_source))

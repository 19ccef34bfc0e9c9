"""slime's `sglang_rollout` for code that makes a rollout: `generate`, `generate_and_rm` and `generate_and_rm_group`.

Each works on the session of the generate function or rollout function that calls it. A rollout function's rollouts are
made as the run's settings say: by --custom-generate-function-path and --rollout-sample-hook-path where they are set.
"""

import asyncio
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serve_apps.generate.hooks import SampleHook
from serve_apps.generate.session import current_session
from slime_events.plugins.loader import accepted, load_function
from slime_events.plugins.sample import Sample, Status

DONE = (Status.COMPLETED, Status.TRUNCATED)


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """One turn of the run's engine, appended to the sample. max_new_tokens counts what the response already has."""
    session = current_session()
    room = int(sampling_params["max_new_tokens"]) - sample.response_length
    if room <= 0:
        sample.status = Status.TRUNCATED
        return sample
    sample.tokens = sample.tokens or session.tokenize(sample.prompt)
    turn = await session.generate(sample.tokens, dict(sampling_params) | {"max_new_tokens": room})
    turn.add_to(sample)
    return sample


async def generate_and_rm(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """A rollout by the sample's own generate function (`generate_function_path`) or `generate`, and its rewards.

    Samples that are finished, or have a reward, are left as they are. Under `args.group_rm` there are no rewards.
    """
    if sample.status in DONE:
        return sample
    session = current_session()
    path = sample.generate_function_path or (session.of_function and args.custom_generate_function_path)
    function = load_function(path, default_names=("generate",)) if path else generate
    offered = {"evaluation": evaluation, "session": session}
    names = {name: offered[name] for name in accepted(function, offered)}
    made: Sample | list[Sample] = await function(args, sample, sampling_params, **names)
    for hook in args.rollout_sample_hook_path if session.of_function else ():
        made = await SampleHook(hook, Path.cwd())(args, made, rollout_id=0, evaluation=evaluation)
    ended = [one for one in (made if isinstance(made, list) else [made]) if one.status is not Status.ABORTED]
    ungraded = [one for one in ended if one.reward is None]
    if not getattr(args, "group_rm", False):
        await _grade(args, ungraded, "async_rm" if isinstance(made, Sample) else "batched_async_rm")
    return made


async def generate_and_rm_group(
    args: Any, group: Sequence[Sample], sampling_params: dict[str, Any], evaluation: bool = False
) -> list[Sample | list[Sample]]:
    """`generate_and_rm` of several samples side by side; under `args.group_rm` they are graded together."""
    made = await asyncio.gather(*(generate_and_rm(args, one, dict(sampling_params), evaluation) for one in group))
    if getattr(args, "group_rm", False):
        samples = [one for part in made for one in (part if isinstance(part, list) else [part])]
        if all(one.status is not Status.ABORTED for one in samples):
            await _grade(args, samples, "")
    return list(made)


async def _grade(args: Any, samples: list[Sample], by: str) -> None:
    """by: slime's function that grades."""
    if not samples:
        return
    hub = importlib.import_module("slime.rollout.rm_hub")
    if by == "async_rm":
        samples[0].reward = await hub.async_rm(args, samples[0])
        return
    for sample, reward in zip(samples, await hub.batched_async_rm(args, samples), strict=True):
        sample.reward = reward


async def abort(args: Any, rollout_id: int) -> list[list[Sample]]:
    """End what a rollout function still generates: its tasks get aborted samples. Raises PlugPointError elsewhere."""
    await current_session().abort()
    return []

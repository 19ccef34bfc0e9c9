"""slime's `sglang_rollout` for code that makes rollouts: `generate`, `generate_and_rm` and `generate_and_rm_group`.

Each uses the session of the generate function or rollout function that calls it. Rollouts of a rollout function follow
the run's settings, --custom-generate-function-path and --rollout-sample-hook-path included.

Outside of a run, as in a test of a plug-in, `args` has the settings, and the engine is behind `post`. As in slime,
these functions look up each other in `slime.rollout.sglang_rollout`: if a name there is replaced, the replacement is
called.
"""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from serve_apps.rollouts.generate.session import Session, current_session, session_here
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import accepted, load_function
from slime_events.plugins.sample import Sample, Status
from slime_events.plugins.slime.aliases import in_force, replaced
from slime_events.plugins.tokenizer import Tokenizer
from storage.cancellation import end_all

DONE = (Status.COMPLETED, Status.TRUNCATED)
HOME = "slime.rollout.sglang_rollout"
_POST = ("post", HOME, "slime.utils.http_utils")
_GET = ("get", HOME, "slime.utils.http_utils")
_LOAD = ("load_function", HOME, "slime.utils.misc")
_HOOKS = ("apply_rollout_sample_hooks", HOME, "slime.rollout.sample_hooks")
_HUB = "slime.rollout.rm_hub"


async def generate(args: ArgsView, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Append one turn of the run's engine to the sample. `max_new_tokens` includes the response so far."""
    session = session_here()
    room = int(sampling_params["max_new_tokens"]) - sample.response_length
    if room <= 0:
        sample.status = Status.TRUNCATED
        return sample
    params = dict(sampling_params) | {"max_new_tokens": room}
    if session is None or replaced(*_POST) or replaced("GenerateState", HOME):
        return await _generate_by_post(args, sample, params)
    sample.tokens = sample.tokens or session.tokenize(sample.prompt)
    turn = await session.generate(sample.tokens, params)
    turn.add_to(sample)
    return sample


async def _generate_by_post(args: ArgsView, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Generate with SGLang's `/generate` at the router of `args`."""
    tokenizer = in_force("GenerateState", HOME)(args).tokenizer
    if not sample.tokens:
        sample.tokens = list(tokenizer.encode(_text(sample, tokenizer), add_special_tokens=False))
    payload: dict[str, Any] = {"sampling_params": sampling_params, "return_logprob": True}
    if getattr(args, "use_rollout_routing_replay", False):
        payload["return_routed_experts"] = True
    if images := (sample.multimodal_inputs or {}).get("images"):
        encode = in_force("encode_image_for_rollout_engine", HOME, "slime.utils.processing_utils")
        payload |= {"image_data": list(map(encode, images)), "text": sample.prompt}
    else:
        payload["input_ids"] = list(sample.tokens)
    sticks = sample.session_id and getattr(args, "router_policy", None) == "consistent_hashing"
    headers = {"X-SMG-Routing-Key": sample.session_id} if sticks else None
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    answer = await in_force(*_POST)(url, payload, headers=headers)
    pairs = answer["meta_info"].get("output_token_logprobs") or []
    sample.append_response_tokens(
        args,
        tokens=[pair[1] for pair in pairs],
        log_probs=[pair[0] for pair in pairs],
        meta_info=answer["meta_info"],
        text=answer["text"],
    )
    return sample


def _text(sample: Sample, tokenizer: Tokenizer) -> str:
    if isinstance(sample.prompt, str):
        return sample.prompt
    return str(tokenizer.apply_chat_template(sample.prompt, tokenize=False, add_generation_prompt=True))


async def generate_and_rm(
    args: ArgsView, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Make a rollout with the sample's own generate function (`generate_function_path`) or `generate`, and its rewards.

    Samples that are finished or have a reward stay unchanged. With `args.group_rm` there are no rewards. If the sample
    already has a response, --mask-offpolicy-in-partial-rollout masks it.
    """
    if sample.status in DONE:
        return sample
    masks = getattr(args, "partial_rollout", False) and getattr(args, "mask_offpolicy_in_partial_rollout", False)
    if masks and sample.response_length > 0:
        sample.loss_mask = [0] * sample.response_length
    session, state = session_here(), in_force("GenerateState", HOME)(args)
    async with state.semaphore:
        if state.aborted:
            sample.status = Status.ABORTED
            return sample
        with state.dp_rank_context():
            result: Sample | list[Sample] = await _call_generate(args, sample, sampling_params, evaluation, session)
    if session is None or session.of_function or replaced(*_HOOKS):
        result = await in_force(*_HOOKS)(args, result, evaluation=evaluation)
    if not getattr(args, "group_rm", False):
        await _grade(args, result)
    return result


async def _call_generate(
    args: ArgsView, sample: Sample, sampling_params: dict[str, Any], evaluation: bool, session: Session | None
) -> Any:
    """Return the result of the sample's generate function.

    If a generate function calls this, `args` names that function itself, so that its path is ignored.
    """
    path = sample.generate_function_path
    if session is None or session.of_function:
        path = path or getattr(args, "custom_generate_function_path", None)
    if not path:
        return await in_force("generate", HOME)(args, sample, sampling_params)
    load = replaced(*_LOAD)
    function = load(path) if load else load_function(path, default_names=("generate",))
    values = {"evaluation": evaluation} | ({} if session is None else {"session": session})
    names = {name: values[name] for name in accepted(function, values)}
    return await function(args, sample, sampling_params, **names)


async def generate_and_rm_group(
    args: ArgsView, group: Sequence[Sample], sampling_params: dict[str, Any], evaluation: bool = False
) -> list[Sample | list[Sample]]:
    """Apply `generate_and_rm` to several samples concurrently. With `args.group_rm` they are graded together.

    If one raises, the others are cancelled.
    """
    state = in_force("GenerateState", HOME)(args)
    if state.aborted:
        return list(group)
    each = [dict(sampling_params) for _ in group]
    if getattr(args, "sglang_enable_deterministic_inference", False):
        for params, seed in zip(each, state.group_sampling_seeds, strict=False):
            params["sampling_seed"] = seed
    if session_here() is None:
        for sample in group:
            sample.session_id = sample.session_id or str(uuid.uuid4())
    make, pairs = in_force("generate_and_rm", HOME), zip(group, each, strict=True)
    tasks = [asyncio.create_task(make(args, sample, params, evaluation=evaluation)) for sample, params in pairs]
    try:
        results = await asyncio.gather(*tasks)
    finally:
        await end_all(*tasks)
    if getattr(args, "group_rm", False) and not state.aborted:
        samples = [sample for part in results for sample in (part if isinstance(part, list) else [part])]
        if all(sample.status is not Status.ABORTED for sample in samples):
            await _grade_all(args, samples)
    return list(results)


async def _grade(args: ArgsView, result: Sample | list[Sample]) -> None:
    """Set the rewards of samples without one. As in slime, none are set if one of several was aborted."""
    if isinstance(result, list):
        if all(sample.status is not Status.ABORTED for sample in result):
            await _grade_all(args, [sample for sample in result if sample.reward is None])
    elif result.status is not Status.ABORTED and result.reward is None:
        result.reward = await in_force("async_rm", HOME, _HUB)(args, result)


async def _grade_all(args: ArgsView, samples: list[Sample]) -> None:
    if samples:
        rewards = await in_force("batched_async_rm", HOME, _HUB)(args, samples)
        for sample, reward in zip(samples, rewards, strict=True):
            sample.reward = reward


async def abort(args: ArgsView, rollout_id: int) -> list[list[Sample]]:
    """End the generations of a rollout function: its tasks get aborted samples. Raises PlugPointError elsewhere.

    Outside of a run all later requests are aborted, and the engines behind the router of `args` abort theirs. The
    caller handles its own tasks.
    """
    if session_here() is not None:
        await current_session().abort()
        return []
    in_force("GenerateState", HOME)(args).aborted = True
    if getattr(args, "sglang_router_ip", None):
        answer = await in_force(*_GET)(f"http://{args.sglang_router_ip}:{args.sglang_router_port}/workers")
        send = in_force(*_POST)
        ended = (send(f"{worker['url']}/abort_request", {"abort_all": True}) for worker in answer["workers"])
        await asyncio.gather(*ended)
    return []

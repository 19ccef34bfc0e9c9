"""slime's rollout loop, for rollout functions that wrap it: `generate_rollout`, and `eval_rollout` for evaluations.

    draw groups -> generate_and_rm_group of each -> dynamic filter -> until a step is full -> abort what is left

Where it differs from slime's: what is aborted ends in the log too, and without --partial-rollout nothing is given back.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from schemas.errors import PlugPointError
from serve_apps.generate.session import current_session
from serve_apps.generate.slime_compat import GenerateState
from serve_apps.generate.slime_rollout import generate_and_rm, generate_and_rm_group
from slime_events.core.config.evaluation import EvalSet, EvalSettings
from slime_events.loop.prompts.dataset import Dataset
from slime_events.plugins.filters.gathering import MetricGatherer, call_dynamic_filter
from slime_events.plugins.loader import load_function
from slime_events.plugins.rollout_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime_events.plugins.sample import Sample, Status
from slime_events.plugins.slime_utils import run
from storage.cancellation import end_all

Groups = list[list[Any]]


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """A step, or with `evaluation` all data sets. Groups that --partial-rollout keeps go back to the data source."""
    if not current_session().of_function:
        raise PlugPointError(
            "generate_rollout makes whole steps: a rollout function (--rollout-function-path) calls it"
        )
    if evaluation:
        output, _ = run(eval_rollout(args, rollout_id))
        return output
    made, aborted = run(generate_rollout_async(args, rollout_id, data_source.get_samples))
    if aborted:
        data_source.add_samples(aborted)
    return made


async def generate_rollout_async(
    args: Any, rollout_id: int, data_source: Callable[[int], Groups]
) -> tuple[RolloutFnTrainOutput, Groups]:
    """(the step's groups, in the order they were drawn; those to give back). data_source: gives so many groups."""
    state, target = GenerateState(args), int(args.rollout_batch_size)
    keep = load_function(args.dynamic_sampling_filter_path) if args.dynamic_sampling_filter_path else None
    gatherer, kept, seen = MetricGatherer(), list[Any](), list[Any]()
    pending, tasks, open_groups = set[asyncio.Task[Any]](), list[asyncio.Task[Any]](), 0
    try:
        while len(kept) < target:
            while open_groups < target:
                drawn = await asyncio.to_thread(data_source, args.over_sampling_batch_size or target)
                begun = [asyncio.create_task(_group(args, group, state)) for group in drawn]
                tasks += begun
                pending |= {*begun}
                open_groups += len(drawn)
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for group in [task.result() for task in done]:
                seen.append(group)
                decision = call_dynamic_filter(keep, args, group)
                is_needed = getattr(decision, "keep_when_insufficient", False) and open_groups <= target
                if not (decision.keep or is_needed):
                    gatherer.on_dynamic_filter_drop(decision.reason)
                    open_groups -= 1
                elif len(kept) < target:
                    kept.append(group)
        aborted = await _abort(args, rollout_id, pending)
    finally:
        await end_all(*tasks)
    for groups in (kept, seen):
        groups.sort(key=lambda group: _first(group).index or 0)
    for path, arguments in (
        (args.rollout_sample_filter_path, (kept,)),
        (args.rollout_all_samples_process_path, (seen, data_source)),
    ):
        if path:
            load_function(path)(args, *arguments)
    return RolloutFnTrainOutput(kept, gatherer.collect()), aborted


async def _group(args: Any, group: list[Sample], state: GenerateState) -> list[Any]:
    return await generate_and_rm_group(args, group, dict(state.sampling_params), evaluation=False)


def _first(group: list[Any]) -> Sample:
    first: Sample = group[0][0] if isinstance(group[0], list) else group[0]
    return first


async def _abort(args: Any, rollout_id: int, pending: set[asyncio.Task[Any]]) -> Groups:
    """End what is under way; the groups to give back."""
    ended = list[Any]()
    aborting = asyncio.create_task(current_session().abort())
    try:
        if pending:
            done, _ = await asyncio.wait(pending)
            ended = [task.result() for task in done if task.exception() is None]
        await aborting
    finally:
        await end_all(aborting)
    current_session().reset()
    for sample in [one for group in ended for one in group if isinstance(one, Sample)]:
        if sample.response and isinstance(sample.metadata, dict):
            sample.metadata.setdefault("start_rollout_id", rollout_id)
    return ended if args.partial_rollout else []


async def eval_rollout(args: Any, rollout_id: int) -> tuple[RolloutFnEvalOutput, Groups]:
    """All data sets of the run's evaluation, each with its own settings."""
    names = EvalSettings.__struct_fields__
    settings = msgspec.convert({name: getattr(args, name) for name in names if hasattr(args, name)}, EvalSettings)
    results = {name: await _eval_set(args, one) for name, one in settings.sets().items()}
    return RolloutFnEvalOutput(results), []


async def _eval_set(args: Any, one: EvalSet) -> dict[str, Any]:
    state = GenerateState(args)
    rows = Dataset(
        one.path,
        state.tokenizer,
        max_length=args.eval_max_prompt_len or args.rollout_max_prompt_len,
        prompt_key=one.input_key or args.input_key,
        label_key=one.label_key,
        tool_key=one.tool_key,
        metadata_key=one.metadata_key or args.metadata_key,
        apply_chat_template=args.apply_chat_template,
        apply_chat_template_kwargs=args.apply_chat_template_kwargs,
    )
    own: dict[str, Any] = {"max_new_tokens": one.max_response_len, "temperature": one.temperature, "top_p": one.top_p}
    own |= {"top_k": one.top_k, "stop": one.stop, "stop_token_ids": one.stop_token_ids}
    params = state.sampling_params | {name: value for name, value in own.items() if value is not None}
    each = one.n_samples_per_eval_prompt or 1
    asked = [
        Sample(
            prompt=row.prompt,
            label=row.label,
            metadata=one.metadata(row.metadata),
            index=place * each + number,
            generate_function_path=one.custom_generate_function_path,
            custom_rm_path=one.custom_rm_path,
        )
        for place, row in enumerate(rows)
        for number in range(each)
    ]
    answers = await asyncio.gather(*(generate_and_rm(args, sample, dict(params), evaluation=True) for sample in asked))
    samples = [sample for made in answers for sample in (made if isinstance(made, list) else [made])]
    key = args.eval_reward_key or args.reward_key
    return {
        "rewards": [sample.reward[key] if key and isinstance(sample.reward, dict) else sample.reward
                    for sample in samples],
        "truncated": [sample.status is Status.TRUNCATED for sample in samples],
        "samples": samples,
    }  # fmt: skip

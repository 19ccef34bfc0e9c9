"""slime's rollout loop, for rollout functions that wrap it: `generate_rollout`, and `eval_rollout` for evaluations.

    draw groups -> generate_and_rm_group of each -> dynamic filter -> until a step is full -> abort the rest

Differences from slime's: aborted generations end in the log too, and without --partial-rollout nothing is given back.
Outside of a run, as in a test of a plug-in, `args` has all settings. If a name of `slime.rollout.sglang_rollout` is
replaced, the replacement is called.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from schemas.errors import PlugPointError
from serve_apps.rollouts.generate.session import session_here
from serve_apps.rollouts.generate.slime.generate_state import GenerateState
from serve_apps.rollouts.generate.slime.rollout import HOME
from slime_events.core.config.evaluation import EvalSettings
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.rollout_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime_events.plugins.sample import Sample, Status
from slime_events.plugins.slime.aliases import in_force, replaced
from slime_events.plugins.slime.eval_datasets import EvalDatasetConfig
from storage.cancellation import end_all

Groups = list[list[Any]]
_FILTERS = "slime.rollout.filter_hub.base_types"
_LOAD = ("load_function", HOME, "slime.utils.misc")


class DataSource(Protocol):
    """The part of slime's data source that the loop uses."""

    def get_samples(self, num_samples: int) -> Groups:
        """Return the next groups."""

    def add_samples(self, samples: Groups) -> None:
        """Give groups back."""


def generate_rollout(
    args: ArgsView, rollout_id: int, data_source: DataSource, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Make a step, or with `evaluation` all data sets. Groups kept by --partial-rollout go back to the source."""
    session = session_here()
    if session is not None and not session.of_function:
        raise PlugPointError(
            "generate_rollout makes whole steps: a rollout function (--rollout-function-path) calls it"
        )
    run = in_force("run", HOME, "slime.utils.async_utils")
    if evaluation:
        evaluated: RolloutFnEvalOutput = run(in_force("eval_rollout", HOME)(args, rollout_id))[0]
        return evaluated
    step: RolloutFnTrainOutput
    step, aborted = run(in_force("generate_rollout_async", HOME)(args, rollout_id, data_source.get_samples))
    if aborted:
        data_source.add_samples(aborted)
    return step


async def generate_rollout_async(
    args: ArgsView, rollout_id: int, data_source: Callable[[int], Groups]
) -> tuple[RolloutFnTrainOutput, Groups]:
    """Return the step's groups in the order of drawing, and the groups to give back.

    `data_source` returns the requested number of groups.
    """
    state, target = in_force("GenerateState", HOME)(args), int(args.rollout_batch_size)
    gatherer, kept, seen = in_force("MetricGatherer", HOME, _FILTERS)(), list[Any](), list[Any]()
    verdict = _verdicts(args, target)
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
                is_dropped, reason = verdict(group, open_groups)
                if is_dropped:
                    gatherer.on_dynamic_filter_drop(reason)
                    open_groups -= 1
                elif len(kept) < target:
                    kept.append(group)
        aborted = await _abort(args, rollout_id, state, pending)
    finally:
        await end_all(*tasks)
    for groups in (kept, seen):
        groups.sort(key=lambda group: _first(group).index or 0)
    for path, arguments in (
        (args.rollout_sample_filter_path, (kept,)),
        (args.rollout_all_samples_process_path, (seen, data_source)),
    ):
        if path:
            in_force(*_LOAD)(path)(args, *arguments)
    return RolloutFnTrainOutput(kept, gatherer.collect()), aborted


def _verdicts(args: ArgsView, target: int) -> Callable[[list[Any], int], tuple[bool, str | None]]:
    """Return the verdict of `args`' dynamic filter as a function: whether to drop a group, and the reason.

    Its arguments are the group, and the number of groups that are kept or in progress.
    """
    path = args.dynamic_sampling_filter_path
    keep = in_force(*_LOAD)(path) if path else None
    call, drops = (
        in_force(name, HOME, _FILTERS) for name in ("call_dynamic_filter", "should_drop_dynamic_filter_output")
    )

    def verdict(group: list[Any], open_groups: int) -> tuple[bool, str | None]:
        decision = call(keep, args, group)
        return drops(decision, remaining_batch_size=open_groups, target_data_size=target), decision.reason

    return verdict


async def _group(args: ArgsView, group: list[Sample], state: GenerateState) -> list[Any]:
    params = dict(state.sampling_params)
    rollouts: list[Any] = await in_force("generate_and_rm_group", HOME)(args, group, params, evaluation=False)
    return rollouts


def _first(group: list[Any]) -> Sample:
    first: Sample = group[0][0] if isinstance(group[0], list) else group[0]
    return first


async def _abort(args: ArgsView, rollout_id: int, state: GenerateState, pending: set[asyncio.Task[Any]]) -> Groups:
    """End the groups in progress, and return the groups to give back. A replacement of `abort` returns them itself."""
    if (other := replaced("abort", HOME)) is not None:
        given_back: Groups = await other(args, rollout_id)
        return given_back
    if session_here() is None and not args.partial_rollout:
        await end_all(*pending)
        return []
    ended = list[Any]()
    aborting = asyncio.create_task(in_force("abort", HOME)(args, rollout_id))
    try:
        if pending:
            done, _ = await asyncio.wait(pending)
            ended = [task.result() for task in done if task.exception() is None]
        await aborting
    finally:
        await end_all(aborting)
    state.reset()
    for sample in [item for group in ended for item in group if isinstance(item, Sample)]:
        if sample.response and isinstance(sample.metadata, dict):
            sample.metadata.setdefault("start_rollout_id", rollout_id)
    return ended if args.partial_rollout else []


async def eval_rollout(args: ArgsView, rollout_id: int) -> tuple[RolloutFnEvalOutput, Groups]:
    """Evaluate all data sets of the run, each with its own settings. A test may set `args.eval_datasets` instead."""
    one_set, results = in_force("eval_rollout_single_dataset", HOME), dict[str, dict[str, Any]]()
    for dataset in _datasets(args):
        results |= await one_set(args, rollout_id, dataset)
    return RolloutFnEvalOutput(results), []


def _datasets(args: ArgsView) -> list[EvalDatasetConfig]:
    if (datasets := getattr(args, "eval_datasets", None)) is not None:
        return list(datasets)
    names = EvalSettings.__struct_fields__
    settings = msgspec.convert({name: getattr(args, name) for name in names if hasattr(args, name)}, EvalSettings)
    return [EvalDatasetConfig(name, **msgspec.structs.asdict(dataset)) for name, dataset in settings.sets().items()]


async def eval_rollout_single_dataset(
    args: ArgsView, rollout_id: int, dataset_cfg: EvalDatasetConfig
) -> dict[str, dict[str, Any]]:
    """Return the rewards and samples of one data set, under its name."""
    dataset: Any = dataset_cfg  # has the settings of `EvalSet` as attributes
    state = in_force("GenerateState", HOME)(args)
    rows = in_force("Dataset", HOME, "slime.utils.data")(
        dataset.path,
        state.tokenizer,
        max_length=args.eval_max_prompt_len or args.rollout_max_prompt_len,
        prompt_key=dataset.input_key or args.input_key,
        label_key=dataset.label_key,
        tool_key=dataset.tool_key,
        metadata_key=dataset.metadata_key or args.metadata_key,
        apply_chat_template=args.apply_chat_template,
        apply_chat_template_kwargs=args.apply_chat_template_kwargs,
    )
    own: dict[str, Any] = {
        "max_new_tokens": dataset.max_response_len,
        "temperature": dataset.temperature,
        "top_p": dataset.top_p,
    }
    own |= {"top_k": dataset.top_k, "stop": dataset.stop, "stop_token_ids": dataset.stop_token_ids}
    params = state.sampling_params | {name: value for name, value in own.items() if value is not None}
    each = dataset.n_samples_per_eval_prompt or 1
    requested = [
        Sample(
            prompt=row.prompt,
            label=row.label,
            metadata=dataset.inject_metadata(row.metadata),
            index=place * each + number,
            generate_function_path=dataset.custom_generate_function_path,
            custom_rm_path=dataset.custom_rm_path,
        )
        for place, row in enumerate(rows)
        for number in range(each)
    ]
    make = in_force("generate_and_rm", HOME)
    answers = await asyncio.gather(*(make(args, sample, dict(params), evaluation=True) for sample in requested))
    samples = [sample for answer in answers for sample in (answer if isinstance(answer, list) else [answer])]
    key = args.eval_reward_key or args.reward_key
    rewards = [sample.reward[key] if key and isinstance(sample.reward, dict) else sample.reward for sample in samples]
    truncated = [sample.status is Status.TRUNCATED for sample in samples]
    return {dataset.name: {"rewards": rewards, "truncated": truncated, "samples": samples}}

"""Every role's real shell over a given way to the log, as a process of it would build it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from actors.archivist import SealPolicy, TrimLog, archive_run
from actors.conductor import Conductor
from actors.grader import Grader
from actors.trainer.trainer import Trainer
from actors.trainer.trainer_plan import TrainerPlan
from schemas.arrays import unpack
from schemas.devices import Side
from serve_apps.engines.carriers.carrier import WeightPlaces
from serve_apps.engines.engine import Engine
from serve_apps.engines.engine_in_turns import EngineInTurns
from serve_apps.engines.engine_weights import HOLD_S, EngineWeights
from serve_apps.rollouts.answerer import MakerSetup
from serve_apps.rollouts.generate.custom import CustomGenerate
from serve_apps.rollouts.generate.function import GenerateSetup
from serve_apps.rollouts.makers import make_answerers
from serve_apps.rollouts.rollout import ChunkRule
from serve_apps.rollouts.rollout_worker import EngineContext, InlineRewards, RolloutWorker
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.data import DataSettings
from slime_events.core.config.evaluation import EvalSet
from slime_events.core.config.reward import RewardSettings
from slime_events.core.devices.device_share import DeviceShare
from slime_events.core.run.participant import Participant
from slime_events.loop.conductor.accept import GroupFilter
from slime_events.loop.conductor.cycle import Policy
from slime_events.loop.conductor.outside_prompts import OutsidePrompts
from slime_events.loop.conductor.plan import Plan
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.prompts.source import EvalSource, PromptSource
from slime_events.loop.training.pending_batches import PendingBatches
from slime_events.plugins.filters.decide import run_filter
from slime_events.plugins.rewards.registry import check_metadata
from slime_events.plugins.sample_view import group_samples
from slime_events.plugins.texts import Texts
from storage.archive.writer import ArchiveWriter
from storage.group_commit import GroupCommit
from storage.weights.shared_versions import SharedVersions
from storage.weights.store import WeightStore
from tests.simulation.parts import Letters, ScriptedRanks

MAX_PROMPT = 200
DATA = DataSettings(input_key="input", label_key="label")


async def inline(event: Any) -> Any:
    """An offload that leaves everything where it is."""
    return event


def keep_all(group: Any) -> Any:
    """The judge of a run without a filter."""
    return run_filter(None, None, group_samples(group))


def make_feed(folder: Path, prompts: Sequence[Any], evaluations: Mapping[str, Sequence[Any]]) -> PromptFeed:
    """Prompts from files that are written into the folder. A row is a text, or a whole line as a dict."""
    sources = {
        name: EvalSource(_source(folder / f"{name}.jsonl", rows), EvalSet(path=""))
        for name, rows in evaluations.items()
    }
    train = _source(folder / "train.jsonl", prompts) if prompts else None
    return PromptFeed(train, sources, DATA, Letters())


def make_outside(tokenizer: Any = None) -> OutsidePrompts:
    """Build what takes in prompts from outside."""
    return OutsidePrompts(DATA, tokenizer or Letters(), MAX_PROMPT, partial(check_metadata, RewardSettings()))


def _source(path: Path, rows: Sequence[Any]) -> PromptSource:
    lines = [row if isinstance(row, dict) else {"input": row, "label": "1"} for row in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = DataSettings(prompt_data=str(path), input_key="input", label_key="label")
    return PromptSource(settings, 0, Letters(), MAX_PROMPT)


def make_conductor(
    worker: Participant,
    plan: Plan,
    feed: PromptFeed,
    judge: GroupFilter | None = None,
    texts: Texts | None = None,
    *,
    policy: Policy | None = None,
    offload: Any = inline,
    deadline_s: float = 10.0,
    **more: Any,
) -> Conductor:
    """A conductor that has read nothing yet. policy: what it decides by, in place of plan, judge and texts. more: of
    its arguments.
    """
    return Conductor(
        worker,
        policy
        or Policy(
            plan, judge or keep_all, lambda raw, sizes: normalize_rewards(raw, sizes, AlgorithmSettings()), texts
        ),
        feed,
        offload,
        deadline_s=deadline_s,
        **more,
    )


def make_trainer(
    worker: Participant,
    plan: Plan,
    ranks: Any,
    folder: Path,
    training: Mapping[str, Any] | None = None,
    *,
    shares: str = "",
    **more: Any,
) -> Trainer:
    """A trainer whose weights and checkpoints lie in the folder. training: of its plan. shares: name under which it
    offers versions in memory, if it does. more: of its arguments.
    """
    offering = SharedVersions(shares, lambda version: True) if shares else None
    return Trainer(
        worker,
        ranks,
        WeightStore(str(folder / "weights"), durable=False, offering=offering),
        PendingBatches(unpack, temperature=1.0),
        TrainerPlan(plan.steps, str(folder / "checkpoints"), plan.publish_every, plan.saves, **training or {}),
        **more,
    )


async def run_trainer_in_turns(
    worker: Participant,
    plan: Plan,
    ranks: ScriptedRanks,
    folder: Path,
    training: Mapping[str, Any] | None = None,
    **more: Any,
) -> None:
    """A trainer to the end of the run, whose ranks use their device in turns with the engines."""
    async with DeviceShare(worker, Side.TRAINER, ranks).following() as share:
        await share.want()
        if await share.take():
            ranks.device.enter(ranks)  # the ranks begin
            await make_trainer(worker, plan, ranks, folder, share=share, **more).run()


async def run_grader(worker: Participant, pool: Any, *, whole_groups: bool = False, start: int = 1) -> None:
    """A grader to the end of the run."""
    async with GroupCommit(worker.log) as commit:
        await Grader(worker, pool, commit, whole_groups=whole_groups, start=start, fetch=unpack).run()


async def run_archivist(worker: Participant, folder: Path, policy: SealPolicy, trim_log: TrimLog | None = None) -> None:
    """An archivist to the end of the run."""
    writer = ArchiveWriter(str(folder / "archive"), worker.log.run)
    await archive_run(worker.log, writer, worker.id, policy=policy, trim_log=trim_log)


async def run_engine(
    worker: Participant,
    engine: Engine,
    *,
    room: int,
    rule: ChunkRule,
    lease_s: float,
    weights_deadline_s: float,
    hold_s: float = HOLD_S,
    generate: GenerateSetup | None = None,
    reward: RewardSettings | None = None,
    in_turns: bool = False,
    shares: str = "",
) -> None:
    """A rollout worker to the end of the run. generate: the run's generate function. reward: see `InlineRewards`.
    in_turns: use the device in turns with the trainer. shares: see `make_trainer`.
    """
    custom = CustomGenerate(generate, Letters(), worker.log, unpack, room) if generate else None
    deadlines: dict[str, Any] = {"deadline_s": weights_deadline_s, "hold_s": hold_s}
    deadlines["places"] = WeightPlaces(run=shares)
    try:
        async with contextlib.AsyncExitStack() as stack:
            share = None
            if in_turns:
                share = await stack.enter_async_context(DeviceShare(worker, Side.ENGINES, engine).following())
                if not await share.take():
                    return
            await engine.start(1.0)
            commit = await stack.enter_async_context(GroupCommit(worker.log))
            if share is not None:
                weights: EngineWeights = EngineInTurns(worker, engine, commit, share=share, **deadlines)
            else:
                weights = EngineWeights(worker, engine, commit, **deadlines)
            await RolloutWorker(
                EngineContext(worker, engine, commit, unpack, inline, weights, rule),
                room,
                lease_s=lease_s,
                answerers=make_answerers(MakerSetup(custom)),
                rewards=InlineRewards(reward, worker.log) if reward else None,
            ).run()
    finally:
        if custom is not None:
            custom.close()
        await engine.stop()

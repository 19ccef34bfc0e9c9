"""`judge`: a launch of slime's users, parsed by our command line, checked against its model and planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from actors.megatron.cpu import has_transformer_engine
from actors.megatron.families.architecture import Architecture
from actors.megatron.families.registry import architecture_of
from actors.megatron.flags import sort_flags
from actors.megatron.layout import Layout
from actors.megatron.memory import RankMemory, count_parameters, trainer_memory
from actors.megatron.model import transformer_config
from actors.megatron.prediction_settings import check_prediction
from schemas.doc import doc
from schemas.errors import SlimeEventsError
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.derivations import on_device
from slime_events.core.config.settings import TrainSettings
from slime_events.core.machine.gpus import gpus
from tests.seeds.checkpoints import config_of, model_of

GIB = 2**30


class Stage(StrEnum):
    """A check, in the order of a start."""

    PARSED = "command line"
    MODEL = "model"
    FLAGS = "flags"
    LAYOUT = "layout"
    MEGATRON = "Megatron"


@dataclass(frozen=True, slots=True)
class Plan:
    """Ranks and engines of a launch on GPUs, by arithmetic."""

    model: str
    parameters: int
    layout: Layout
    ranks: int
    memory: Annotated[RankMemory, doc("Of a rank of the fullest stage.")]
    offloaded: Annotated[bool, doc("The optimizer is in host memory.")]
    engines: int
    engine_gpus: Annotated[int, doc("GPUs of an engine.")]
    engine_bytes: Annotated[int, doc("Weights in bfloat16 on each GPU of an engine.")]

    def __str__(self) -> str:
        cut = self.layout
        sizes = f"TP {cut.tensor} PP {cut.pipeline} CP {cut.context} EP {cut.expert} ETP {cut.expert_tensor}"
        copies = self.ranks // (cut.tensor * cut.pipeline * cut.context)
        kept = f"{self.memory.total / GIB:.1f} GiB a rank" + (" without the optimizer" if self.offloaded else "")
        many = f"{self.engines} engine{'s' * (self.engines > 1)} of {gpus(self.engine_gpus)}"
        engines = f"{many}, {self.engine_bytes / GIB:.1f} GiB a GPU"
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        head = f"{self.model} {self.parameters / 1e9:.2f} B, {ranks}: {sizes} DP {copies}, {kept}"
        return f"{head}; {engines if self.engines else 'no engines'}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one launch."""

    name: str
    refusals: Annotated[tuple[tuple[Stage, str], ...], doc("Each check that refuses it, with the message.")]
    plan: Annotated[Plan | None, doc("None if its settings or its model are not known.")]

    @property
    def accepted(self) -> bool:
        """Whether every check accepts it."""
        return not self.refusals


def judge(name: str, words: Sequence[str]) -> Verdict:
    """Return what the checks of a start on GPUs say about a launch. words: its flags."""
    try:
        settings = on_device(parse_train(words).settings, "cuda")
    except SlimeEventsError as error:
        return Verdict(name, ((Stage.PARSED, str(error)),), None)
    trainer = settings.trainer
    try:
        read = architecture_of(config_of(trainer.hf_checkpoint), trainer.hf_checkpoint)
        architecture = check_prediction(trainer, read)
    except SlimeEventsError as error:
        return Verdict(name, ((Stage.MODEL, str(error)),), None)
    refusals = [
        *_refusal(Stage.FLAGS, lambda: sort_flags(trainer.megatron, architecture, cpu=False)),
        *_refusal(Stage.LAYOUT, lambda: Layout.of(trainer).check(architecture)),
        *_refusal(Stage.LAYOUT, lambda: Layout.of(trainer).check_ranks(trainer.world_size)),
    ]
    if not refusals:
        flags = dict(sort_flags(trainer.megatron, architecture, cpu=False).transformer)
        for name in [name for name in flags if name.startswith("fp8") and not has_transformer_engine()]:
            del flags[name]  # Megatron compares them with the version of Transformer Engine
        refusals = _refusal(Stage.MEGATRON, lambda: transformer_config(architecture, trainer, flags))
    return Verdict(name, tuple(refusals), plan_of(settings, architecture))


def _refusal(stage: Stage, check: Callable[[], object]) -> list[tuple[Stage, str]]:
    """Return the message of a check that fails, with its stage."""
    try:
        check()
    except SlimeEventsError as error:
        return [(stage, str(error))]
    return []


def plan_of(settings: TrainSettings, architecture: Architecture) -> Plan:
    """Return the ranks and engines of a run on GPUs."""
    trainer, engine, parameters = settings.trainer, settings.engine, count_parameters(architecture)
    return Plan(
        model=model_of(trainer.hf_checkpoint),
        parameters=parameters,
        layout=Layout.of(trainer),
        ranks=trainer.world_size,
        memory=trainer_memory(architecture, trainer),
        offloaded=bool(trainer.megatron.get("optimizer_cpu_offload")),
        engines=0 if settings.debug.debug_train_only else engine.replicas,
        engine_gpus=engine.rollout_num_gpus_per_engine,
        engine_bytes=2 * parameters // engine.rollout_num_gpus_per_engine,
    )

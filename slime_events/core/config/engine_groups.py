"""Groups of engines with arguments of their own, and models that are served beside the trained one (`--sglang-config`).

sglang:                            # slime's file: a list of models
  - name: actor                    # the trained model: its engines make the rollouts and load every version
    server_groups:
      - {worker_type: regular, num_gpus: 4, overrides: {context_length: 32768}}
      - {worker_type: regular, num_gpus: 4, num_gpus_per_engine: 2}
  - name: judge                    # another model: it keeps its weights, and functions ask it by its name
    model_path: /models/judge
    update_weights: false
    server_groups:
      - {worker_type: regular, num_gpus: 1}
"""

import enum
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from msgspec import field

from slime_events.core.config.base import Settings, doc


class WorkerType(enum.StrEnum):
    """Kind of a group, as in slime's file."""

    REGULAR = "regular"
    PREFILL = "prefill"
    DECODE = "decode"
    ENCODER = "encoder"
    PLACEHOLDER = "placeholder"
    """No engines: the GPUs stay free."""


DIVIDED = (WorkerType.PREFILL, WorkerType.DECODE, WorkerType.ENCODER)
"""Types that divide one request between several engines."""
NOT_DIVIDED = (
    "a single engine answers a request here, and no engine passes the cache of a prompt to another one. Of SGLang's "
    "transfer backends mooncake, nixl and mori need GPU memory and a package that is not installed, ascend needs an "
    "NPU, and fake transfers nothing (docs/engine-groups.md)"
)
"""Why a request cannot be divided."""
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ServerGroup(Settings, frozen=True, kw_only=True):
    """Equal engines of a model."""

    worker_type: Annotated[WorkerType, doc("regular, or placeholder: GPUs that stay free")] = WorkerType.REGULAR
    num_gpus: Annotated[int, doc("GPUs of all engines of the group together (on the CPU: engines)", above=0)]
    num_gpus_per_engine: Annotated[int | None, doc("GPUs of an engine; default: those of the model", above=0)] = None
    overrides: Annotated[dict[str, Any], doc("SGLang's ServerArgs by name, over the flags --sglang-*")] = field(
        default_factory=dict
    )


class ServedModel(Settings, frozen=True, kw_only=True):
    """A model of the file."""

    model_path: Annotated[str | None, doc("Hugging Face folder; default: hf-checkpoint")] = None
    update_weights: Annotated[
        bool | None, doc("whether its engines load every version; default: if its folder is hf-checkpoint")
    ] = None
    num_gpus_per_engine: Annotated[
        int | None, doc("GPUs of an engine; default: rollout-num-gpus-per-engine", above=0)
    ] = None
    server_groups: Annotated[list[ServerGroup], doc("groups of its engines")] = field(default_factory=list)


class EngineGroup(Settings, frozen=True, kw_only=True):
    """A group with everything that it takes from its model and from flags."""

    model: str
    number: Annotated[int, doc("index in the model")]
    checkpoint: Annotated[str, doc("Hugging Face folder of the first weights")]
    trained: Annotated[bool, doc("its engines make the rollouts and load every version")]
    gpus: Annotated[int, doc("GPUs of the group (on the CPU: engines)")]
    each: Annotated[int, doc("GPUs of an engine")]
    overrides: dict[str, Any]
    reserved: Annotated[bool, doc("a placeholder")]

    @property
    def name(self) -> str:
        """Name of the group, unique in a run."""
        return f"{self.model}-{self.number}"

    @property
    def engines(self) -> int:
        """Number of engines."""
        return 0 if self.reserved else self.gpus // self.each


def groups_of(models: Mapping[str, ServedModel], checkpoint: str, each: int) -> tuple[EngineGroup, ...]:
    """Return the groups in the order of the file. checkpoint, each: the values of the flags."""
    return tuple(
        EngineGroup(
            model=name,
            number=number,
            checkpoint=_path(model, group) or checkpoint,
            trained=is_trained(model, checkpoint),
            gpus=group.num_gpus,
            each=group.num_gpus_per_engine or model.num_gpus_per_engine or each,
            overrides={name: value for name, value in group.overrides.items() if name != "model_path"},
            reserved=group.worker_type is WorkerType.PLACEHOLDER,
        )
        for name, model in models.items()
        for number, group in enumerate(model.server_groups)
    )


def is_trained(model: ServedModel, checkpoint: str) -> bool:
    """Return whether a model's engines load every version."""
    if model.update_weights is not None:
        return model.update_weights
    return {_path(model, group) or checkpoint for group in model.server_groups} <= {checkpoint}


def _path(model: ServedModel, group: ServerGroup) -> str | None:
    path = group.overrides.get("model_path", model.model_path)
    return None if path is None else str(path)


def problems_of(models: Mapping[str, ServedModel], checkpoint: str, each: int) -> Iterator[str]:
    """Yield a sentence for each problem of the models. Empty without models."""
    for name, model in models.items():
        where = f"sglang_config: model {name!r}"
        if not MODEL_NAME.fullmatch(name):
            yield f"{where}: a name has 1 to 64 letters, digits, -, _ and ., and begins with a letter or digit."
        if not model.server_groups:
            yield f"{where} has no server_groups: give at least one, with worker_type and num_gpus."
        if len({_path(model, group) or checkpoint for group in model.server_groups}) > 1:
            yield f"{where}: its groups have different model_path: a model has a single one."
        for number, group in enumerate(model.server_groups):
            yield from _group_problems(f"{where}, group {number}", group, model, each)
    trained = [name for name, model in models.items() if is_trained(model, checkpoint)]
    if models and len(trained) != 1:
        listed = ", ".join(trained) or "none does"
        yield (
            f"sglang_config: exactly one model gets the trainer's weights, and here {listed}: give "
            "update_weights false to each other model."
        )
    for name in trained:
        if {_path(models[name], group) or checkpoint for group in models[name].server_groups} - {checkpoint}:
            yield (
                f"sglang_config: model {name!r} gets the trainer's weights, so its model_path is hf_checkpoint "
                f"{checkpoint}: leave model_path out."
            )
        if all(group.worker_type is WorkerType.PLACEHOLDER for group in models[name].server_groups):
            yield f"sglang_config: model {name!r} has only placeholders: no engine would make rollouts."


def _group_problems(where: str, group: ServerGroup, model: ServedModel, each: int) -> Iterator[str]:
    if group.worker_type in DIVIDED:
        yield f"{where}: worker_type {group.worker_type} is not supported yet: {NOT_DIVIDED}."
    size = group.num_gpus_per_engine or model.num_gpus_per_engine or each
    if group.num_gpus < 1 or size < 1:
        yield f"{where}: num_gpus {group.num_gpus} and num_gpus_per_engine {size} must be above 0."
    elif group.worker_type is not WorkerType.PLACEHOLDER and group.num_gpus % size:
        yield f"{where}: num_gpus {group.num_gpus} does not divide into engines of num_gpus_per_engine {size}."

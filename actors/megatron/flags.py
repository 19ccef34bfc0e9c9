"""`sort_flags`: divide Megatron's flags among Megatron's settings objects."""

import dataclasses
import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from actors.megatron.families.architecture import Architecture
from actors.megatron.layout import VIRTUAL_LAYERS
from schemas.doc import doc
from schemas.errors import InvalidValue, UnknownFlag
from slime_events.core.config.tables import MEGATRON_CUDA, MEGATRON_IDLE

logger = logging.getLogger(__name__)

# Flags whose value is fixed here, or that belong to Megatron's own training loop, data or logging.
WITHOUT_EFFECT = frozenset((
    *MEGATRON_IDLE, "ckpt_format", "distributed_backend", "eval_interval", "eval_iters", "log_interval",
    "log_throughput", "no_load_optim", "no_load_rng", "no_save_optim", "no_save_rng", "tokenizer_type",
    "train_iters", "use_mcore_models",
))  # fmt: skip
# Flags that the trainer itself reads besides its own settings.
SCHEDULER = frozenset(
    [
        "lr_warmup_init",
        "lr_wsd_decay_iters",
        "lr_wsd_decay_style",
        "start_weight_decay",
        "end_weight_decay",
        "weight_decay_incr_style",
    ]
)
LAYOUT = (VIRTUAL_LAYERS,)
# Names of the trainer's own settings, which a Megatron flag could contradict.
OWN = frozenset(
    ["tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "bf16", "lr", "min_lr"]
)


@dataclass(frozen=True, slots=True)
class MegatronFlags:
    """Keyword arguments of Megatron's settings objects. A name that two objects have is in both."""

    transformer: Annotated[Mapping[str, object], doc("Of TransformerConfig.")]
    optimizer: Annotated[Mapping[str, object], doc("Of OptimizerConfig.")]
    distributed: Annotated[Mapping[str, object], doc("Of DistributedDataParallelConfig.")]
    scheduler: Annotated[Mapping[str, object], doc("Of the learning rate schedule.")]


def sort_flags(flags: Mapping[str, object], architecture: Architecture, *, cpu: bool) -> MegatronFlags:
    """Divide flags, named as Megatron's fields, among the settings objects that have such a field.

    Architecture flags are compared with the checkpoint. On the CPU, flags of CUDA kernels are left out with a warning.
    Raises CheckpointMismatch, InvalidValue, and UnknownFlag with the nearest names.
    """
    architecture.check_flags(flags)
    transformer = TransformerConfig if architecture.latent is None else MLATransformerConfig
    fields = {
        "transformer": {field.name for field in dataclasses.fields(transformer)},
        "optimizer": {field.name for field in dataclasses.fields(OptimizerConfig)},
        "distributed": {field.name for field in dataclasses.fields(DistributedDataParallelConfig)},
        "scheduler": SCHEDULER,
    }
    sorted_flags: dict[str, dict[str, object]] = {kind: {} for kind in fields}
    dropped = []
    for name, value in flags.items():
        if name in WITHOUT_EFFECT or name in LAYOUT or name in architecture.as_flags():
            continue
        if cpu and name in MEGATRON_CUDA:
            dropped.append(name)
            continue
        kinds = [kind for kind, names in fields.items() if name in names]
        if not kinds:
            near = difflib.get_close_matches(name, sorted(WITHOUT_EFFECT.union(*fields.values())), n=3)
            hint = f"; did you mean {', '.join(map(_flag, near))}?" if near else ""
            raise UnknownFlag(
                f"{_flag(name)} is not a setting of Megatron's model, optimizer or data parallelism{hint}"
            )
        for kind in kinds:
            sorted_flags[kind][name] = _checked(name, value)
    if dropped:
        logger.warning("on the CPU these Megatron flags have no effect: %s", ", ".join(sorted(dropped)))
    return MegatronFlags(**sorted_flags)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _checked(name: str, value: object) -> object:
    """Return the value in the type that Megatron's settings objects take."""
    if name in OWN:
        raise InvalidValue(f"megatron.{name}: set the trainer's own {name} instead")
    if name in ("hidden_dropout", "attention_dropout") and value:
        raise InvalidValue(f"{_flag(name)} {value}: the trainer supports only 0, since log-probs must be exact")
    if name == "attention_backend" and isinstance(value, str):
        try:
            return AttnBackend[value]
        except KeyError:
            raise InvalidValue(f"--attention-backend {value}: one of {', '.join(AttnBackend.__members__)}") from None
    return value

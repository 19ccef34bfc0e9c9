"""Megatron's flags by name: which of Megatron's own settings objects each one goes to."""

import dataclasses
import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import TransformerConfig

from actors.megatron.architecture import Architecture
from schemas.errors import InvalidValue, UnknownFlag
from slime_events.core.config.tables import MEGATRON_CUDA, MEGATRON_IDLE

logger = logging.getLogger(__name__)

# Flags that are always so here, or that speak of Megatron's own training loop, data or logging.
WITHOUT_EFFECT = frozenset((
    *MEGATRON_IDLE, "ckpt_format", "distributed_backend", "eval_interval", "eval_iters", "log_interval",
    "log_throughput", "no_load_optim", "no_load_rng", "no_save_optim", "no_save_rng", "tokenizer_type",
    "train_iters", "use_mcore_models",
))  # fmt: skip
# Read by the trainer itself, next to its own settings.
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
# Names the trainer's own settings have; given twice they could contradict.
OWN = frozenset(
    ["tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "bf16", "lr", "min_lr"]
)


@dataclass(frozen=True, slots=True)
class MegatronFlags:
    """Keyword arguments of Megatron's settings objects. A name known to two of them is in both."""

    transformer: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    distributed: Mapping[str, Any]
    scheduler: Mapping[str, Any]


def sort_flags(flags: Mapping[str, Any], architecture: Architecture, *, cpu: bool) -> MegatronFlags:
    """Sort flags, by the names of Megatron's fields, by the settings object that has such a field.

    Architecture flags are compared with the checkpoint. On the CPU, flags of CUDA kernels are left out with a warning.
    Raises CheckpointMismatch, InvalidValue, and UnknownFlag with the nearest names.
    """
    architecture.check_flags(flags)
    fields = {
        "transformer": {field.name for field in dataclasses.fields(TransformerConfig)},
        "optimizer": {field.name for field in dataclasses.fields(OptimizerConfig)},
        "distributed": {field.name for field in dataclasses.fields(DistributedDataParallelConfig)},
        "scheduler": SCHEDULER,
    }
    sorted_flags: dict[str, dict[str, Any]] = {kind: {} for kind in fields}
    dropped = []
    for given, value in flags.items():
        if given in WITHOUT_EFFECT or given in architecture.as_flags():
            continue
        if cpu and given in MEGATRON_CUDA:
            dropped.append(given)
            continue
        kinds = [kind for kind, names in fields.items() if given in names]
        if not kinds:
            near = difflib.get_close_matches(given, sorted(WITHOUT_EFFECT.union(*fields.values())), n=3)
            hint = f"; did you mean {', '.join('--' + name.replace('_', '-') for name in near)}?" if near else ""
            flag = f"--{given.replace('_', '-')}"
            raise UnknownFlag(f"{flag} is no setting of Megatron's model, optimizer or data parallelism{hint}")
        for kind in kinds:
            sorted_flags[kind][given] = _checked(given, value)
    if dropped:
        logger.warning("on the CPU these Megatron flags have no effect: %s", ", ".join(sorted(dropped)))
    return MegatronFlags(**sorted_flags)


def _checked(given: str, value: Any) -> Any:
    """The value as Megatron's settings objects take it."""
    if given in OWN:
        raise InvalidValue(f"megatron.{given}: set the trainer's own {given} instead")
    if given in ("hidden_dropout", "attention_dropout") and value:
        raise InvalidValue(
            f"--{given.replace('_', '-')} {value}: the trainer supports 0 only (log-probs must be exact)"
        )
    if given == "use_precision_aware_optimizer" and value:
        raise InvalidValue(
            "--use-precision-aware-optimizer keeps weights of its own, which could not follow those of the store when "
            "ranks are started again: leave it out"
        )
    if given == "attention_backend" and isinstance(value, str):
        try:
            return AttnBackend[value]
        except KeyError:
            raise InvalidValue(f"--attention-backend {value}: one of {', '.join(AttnBackend.__members__)}") from None
    return value

"""Megatron's data parallel wrapper, optimizer and learning rate schedule around a model."""

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.transformer_config import TransformerConfig

from actors.megatron.cpu import on_cpu, stand_in
from actors.megatron.flags import MegatronFlags
from schemas.errors import InvalidValue
from slime_events.core.config.trainer import TrainerSettings

TORCH_OWN = (torch.optim.Adam, torch.optim.SGD)
"""Where neither Transformer Engine nor Apex is installed, and nothing is offloaded to the CPU. AdamW is an Adam."""


def shards_state(settings: TrainerSettings, given: bool | None, *, offloaded: bool, cpu: bool) -> bool:
    """Whether each data parallel rank has only its part of the optimizer's state (`--use-distributed-optimizer`): as
    given, else on CUDA and for Adam on the device, as in slime. Raises InvalidValue where Megatron's has no such state.
    """
    unfit = f"--optimizer {settings.optimizer}" if settings.optimizer != "adam" else ""
    if offloaded:
        unfit = "--optimizer-cpu-offload"
    if given and unfit:
        raise InvalidValue(f"--use-distributed-optimizer does not go with {unfit}: leave one of them out")
    return given if given is not None else not cpu and not unfit


def wrap_data_parallel(
    model: torch.nn.Module, config: TransformerConfig, settings: TrainerSettings, flags: MegatronFlags
) -> DistributedDataParallel:
    """The model with gradients accumulated and summed over data parallel ranks in float32. Raises InvalidValue."""
    given = flags.distributed.get("use_distributed_optimizer")
    offloaded = bool(flags.optimizer.get("optimizer_cpu_offload"))
    sharded = {"use_distributed_optimizer": shards_state(settings, given, offloaded=offloaded, cpu=on_cpu())}
    ddp_config = DistributedDataParallelConfig(**{**flags.distributed, **sharded, "grad_reduce_in_fp32": True})
    with stand_in():
        return DistributedDataParallel(config, ddp_config, model)


def build_optimizer(model: DistributedDataParallel, settings: TrainerSettings, flags: MegatronFlags) -> Any:
    """Megatron's optimizer, its state there from the start: a checkpoint before the first step is complete too.

    torch's own optimizers are fused: on the CPU in place of a loop over parameters, on CUDA in place of `foreach`,
    which takes longer and makes temporaries.
    """
    given = {
        "optimizer": settings.optimizer,
        "lr": settings.lr,
        "min_lr": settings.min_lr,
        "weight_decay": settings.weight_decay,
        "adam_beta1": settings.adam_beta1,
        "adam_beta2": settings.adam_beta2,
        "adam_eps": settings.adam_eps,
        "clip_grad": settings.clip_grad,
        "bf16": bool(settings.bf16),
        "params_dtype": torch.bfloat16 if settings.bf16 else torch.float32,
        "use_distributed_optimizer": model.ddp_config.use_distributed_optimizer,
    }
    with stand_in():
        optimizer = get_megatron_optimizer(OptimizerConfig(**{**flags.optimizer, **given}), [model])
        if on_cpu() or isinstance(optimizer.optimizer, TORCH_OWN):
            for group in optimizer.optimizer.param_groups:
                group["fused"] = True
            ensure_state(optimizer, settings)
        for part in optimizer.chained_optimizers:
            # Megatron calls it for whatever optimizer a checkpoint is loaded into, and has none for SGD.
            part.init_state_fn = part.init_state_fn or (lambda *_: None)
    return optimizer


def ensure_state(optimizer: Any, settings: TrainerSettings) -> None:
    """Give every parameter the state that its first step would have given it, where it has none: a checkpoint is loaded
    into what is there.
    """
    inner = optimizer.optimizer
    for group in inner.param_groups:
        for parameter in group["params"]:
            state = inner.state[parameter]
            if settings.optimizer == "sgd":
                if group["momentum"]:
                    state.setdefault("momentum_buffer", torch.zeros_like(parameter))
                continue
            state.setdefault("step", torch.zeros((), dtype=torch.float32, device=parameter.device))
            state.setdefault("exp_avg", torch.zeros_like(parameter))
            state.setdefault("exp_avg_sq", torch.zeros_like(parameter))


@torch.no_grad()
def follow_weights(optimizer: Any) -> None:
    """Make the optimizer go on from the model's weights, which were changed outside of it.

    Only float32 main weights are to be set. One that rounds to the model's weight stays: most updates are smaller than
    bfloat16 can tell apart, and its lower bits are their sum.
    """
    for part in optimizer.chained_optimizers:
        if hasattr(part.optimizer, "update_fp32_param_by_new_param"):  # offloaded to the CPU: as a whole, by Megatron
            part.reload_model_params()
            continue
        prefix = "shard_" if hasattr(part, "shard_float16_groups") else ""
        groups = [getattr(part, f"{prefix}{name}_groups", ()) for name in ("float16", "fp32_from_float16")]
        for models, mains in zip(*groups, strict=True):
            for model, main in zip(models, mains, strict=True):
                main.copy_(torch.where(main.to(model.dtype) == model, main, model.float()))


@torch.no_grad()
def forget_moments(optimizer: Any) -> None:
    """Moments and Adam's count of steps at 0, as before the first step. Main weights and the schedule stay."""
    for part in optimizer.chained_optimizers:
        for group in part.optimizer.param_groups:
            if "step" in group:  # Transformer Engine's Adam counts for a group
                group["step"] = 0
        for state in part.optimizer.state.values():
            for name in {"exp_avg", "exp_avg_sq", "momentum_buffer", "step"} & state.keys():
                if torch.is_tensor(state[name]):
                    state[name].zero_()


def build_scheduler(optimizer: Any, settings: TrainerSettings, flags: Mapping[str, Any]) -> OptimizerParamScheduler:
    """Megatron's schedule, counted in optimizer steps. As in Megatron, the first step of a warm-up has rate 0."""
    decay = settings.lr_decay_iters
    if decay is None:
        if settings.lr_decay_style != "constant":
            raise InvalidValue(
                f"lr-decay-style {settings.lr_decay_style} needs lr-decay-iters: the optimizer steps of the whole run"
            )
        decay = settings.lr_warmup_iters + 1
    warmup = settings.lr_warmup_iters
    if settings.lr_warmup_fraction is not None:
        warmup = int(settings.lr_warmup_fraction * decay)
    if warmup >= decay:
        raise InvalidValue(f"lr-warmup-iters {warmup} must be below lr-decay-iters {decay}")
    if settings.min_lr > settings.lr:
        raise InvalidValue(f"min-lr {settings.min_lr} is above lr {settings.lr}: the floor would be over the start")
    style = flags.get("weight_decay_incr_style", "constant")
    weight_decay = [flags.get(f"{end}_weight_decay", settings.weight_decay) for end in ("start", "end")]
    if style == "constant" and weight_decay[0] != weight_decay[1]:
        raise InvalidValue(
            f"start-weight-decay {weight_decay[0]} and end-weight-decay {weight_decay[1]} differ, and "
            "weight-decay-incr-style is constant: make it linear or cosine"
        )
    return OptimizerParamScheduler(
        optimizer,
        init_lr=flags.get("lr_warmup_init", 0.0),
        max_lr=settings.lr,
        min_lr=settings.min_lr,
        lr_warmup_steps=warmup,
        lr_decay_steps=decay,
        lr_decay_style=settings.lr_decay_style,
        start_wd=weight_decay[0],
        end_wd=weight_decay[1],
        wd_incr_steps=decay,
        wd_incr_style=style,
        wsd_decay_steps=flags.get("lr_wsd_decay_iters"),
        lr_wsd_decay_style=flags.get("lr_wsd_decay_style", "exponential"),
    )

"""Megatron's data parallel wrapper, optimizer and learning rate schedule around a model."""

from collections.abc import Mapping

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import ChainedOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.transformer_config import TransformerConfig

from actors.megatron.cpu import on_cpu, stand_in
from actors.megatron.flags import MegatronFlags
from schemas.errors import InvalidValue
from slime_events.core.config.trainer import TrainerSettings

TORCH_OWN = (torch.optim.Adam, torch.optim.SGD)
"""Optimizers without Transformer Engine, Apex and CPU offload. AdamW is a subclass of Adam."""


def shards_state(settings: TrainerSettings, requested: bool | None, *, offloaded: bool, cpu: bool) -> bool:
    """Return whether each data parallel rank has only its part of the optimizer's state.

    requested: value of `--use-distributed-optimizer`; by default the state is divided on CUDA for Adam on the device,
    as in slime. Raises InvalidValue if Megatron cannot divide this optimizer's state.
    """
    unfit = f"--optimizer {settings.optimizer}" if settings.optimizer != "adam" else ""
    if offloaded:
        unfit = "--optimizer-cpu-offload"
    if requested and unfit:
        raise InvalidValue(f"--use-distributed-optimizer does not go with {unfit}: leave one of them out")
    return requested if requested is not None else not cpu and not unfit


def wrap_data_parallel(
    model: torch.nn.Module, config: TransformerConfig, settings: TrainerSettings, flags: MegatronFlags
) -> DistributedDataParallel:
    """Wrap the model to accumulate gradients in float32 and sum them over data parallel ranks. Raises InvalidValue."""
    flag = flags.distributed.get("use_distributed_optimizer")
    requested = None if flag is None else bool(flag)
    offloaded = bool(flags.optimizer.get("optimizer_cpu_offload"))
    sharded = {"use_distributed_optimizer": shards_state(settings, requested, offloaded=offloaded, cpu=on_cpu())}
    ddp_config = DistributedDataParallelConfig(**{**flags.distributed, **sharded, "grad_reduce_in_fp32": True})
    with stand_in():
        return DistributedDataParallel(config, ddp_config, model)


def build_optimizer(
    model: DistributedDataParallel, settings: TrainerSettings, flags: MegatronFlags
) -> ChainedOptimizer:
    """Return Megatron's optimizer with its state allocated, so that a checkpoint before the first step is complete.

    torch's own optimizers are fused: on the CPU this replaces a loop over parameters, on CUDA it replaces `foreach`,
    which is slower and allocates temporaries.
    """
    own = {
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
        optimizer = get_megatron_optimizer(OptimizerConfig(**{**flags.optimizer, **own}), [model])
        # Experts on several ranks have a part of their own. A part has no optimizer if no rank trains its parameters.
        optimizer = ChainedOptimizer([part for part in optimizer.chained_optimizers if not part.is_stub_optimizer])
        for part in optimizer.chained_optimizers:
            if on_cpu() or isinstance(part.optimizer, TORCH_OWN):
                for group in part.optimizer.param_groups:
                    group["fused"] = True
                ensure_state(part.optimizer, settings)
            # Megatron calls this function when it loads a checkpoint, but defines none for SGD.
            part.init_state_fn = part.init_state_fn or (lambda *_: None)
    return optimizer


def ensure_state(inner: torch.optim.Optimizer, settings: TrainerSettings) -> None:
    """Give each parameter without state the state of its first step: a checkpoint is loaded into existing state."""
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
def follow_weights(optimizer: ChainedOptimizer) -> None:
    """Set float32 main weights to the model's weights, which were changed outside of the optimizer.

    A main weight that rounds to the model's weight stays: its lower bits are the sum of updates that are too small for
    bfloat16.
    """
    for part in optimizer.chained_optimizers:
        if hasattr(part.optimizer, "update_fp32_param_by_new_param"):  # offloaded to the CPU: Megatron copies all
            part.reload_model_params()
            continue
        prefix = "shard_" if hasattr(part, "shard_float16_groups") else ""
        groups = [getattr(part, f"{prefix}{name}_groups", ()) for name in ("float16", "fp32_from_float16")]
        for models, mains in zip(*groups, strict=True):
            for model, main in zip(models, mains, strict=True):
                main.copy_(torch.where(main.to(model.dtype) == model, main, model.float()))


@torch.no_grad()
def forget_moments(optimizer: ChainedOptimizer) -> None:
    """Set moments and Adam's step counts to 0, as before the first step. Main weights and the schedule stay."""
    for part in optimizer.chained_optimizers:
        for group in part.optimizer.param_groups:
            if "step" in group:  # Transformer Engine's Adam counts steps per group
                group["step"] = 0
        for state in part.optimizer.state.values():
            for name in {"exp_avg", "exp_avg_sq", "momentum_buffer", "step"} & state.keys():
                if torch.is_tensor(state[name]):
                    state[name].zero_()


def build_scheduler(
    optimizer: ChainedOptimizer, settings: TrainerSettings, flags: Mapping[str, object]
) -> OptimizerParamScheduler:
    """Return Megatron's schedule in optimizer steps. As in Megatron, the first step of a warm-up has rate 0.

    Raises InvalidValue.
    """
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
    style = flags.get("weight_decay_incr_style", "constant")
    weight_decay = [flags.get(f"{end}_weight_decay", settings.weight_decay) for end in ("start", "end")]
    if style == "constant" and weight_decay[0] != weight_decay[1]:
        raise InvalidValue(
            f"start-weight-decay {weight_decay[0]} and end-weight-decay {weight_decay[1]} differ, but "
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

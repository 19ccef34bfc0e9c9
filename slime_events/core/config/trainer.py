"""What the trainer runs: parallelism, optimizer, batching, checkpoints. Megatron's names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from slime_events.core.config.base import Settings


class TrainerSettings(Settings, frozen=True, kw_only=True):
    """One trainer of `actor_num_nodes x actor_num_gpus_per_node` Megatron ranks.

    The architecture comes from the HF checkpoint's config.json; `megatron` holds every other Megatron flag that was
    given, by its Megatron name, and must not contradict the checkpoint.
    """

    hf_checkpoint: Annotated[str, Meta(description="HF folder: tokenizer, config, first weights")] = ""
    ref_load: Annotated[str | None, Meta(description="HF folder of the reference model; default: hf-checkpoint")] = None
    load: Annotated[str | None, Meta(description="trainer checkpoint (or HF folder) to start from")] = None
    save: Annotated[str | None, Meta(description="folder for trainer checkpoints; default: the run folder")] = None
    save_interval: Annotated[int | None, Meta(description="save a checkpoint every N steps")] = None
    actor_num_nodes: Annotated[int, Meta(description="trainer nodes")] = 1
    actor_num_gpus_per_node: Annotated[int, Meta(description="trainer ranks per node (GPUs, or CPU processes)")] = 1
    tensor_model_parallel_size: Annotated[int, Meta(description="tensor parallel ranks")] = 1
    pipeline_model_parallel_size: Annotated[int, Meta(description="pipeline parallel ranks")] = 1
    context_parallel_size: Annotated[int, Meta(description="context parallel ranks (GPU only)")] = 1
    sequence_parallel: Annotated[bool, Meta(description="sequence parallelism beside tensor parallelism")] = False
    distributed_timeout_minutes: Annotated[int, Meta(description="process group time-out")] = 10
    global_batch_size: Annotated[int | None, Meta(description="rollouts per optimizer step")] = None
    num_steps_per_rollout: Annotated[int | None, Meta(description="optimizer steps per rollout step")] = None
    micro_batch_size: Annotated[int, Meta(description="samples per forward without dynamic batching")] = 1
    use_dynamic_batch_size: Annotated[bool, Meta(description="pack samples by tokens")] = False
    max_tokens_per_gpu: Annotated[int | None, Meta(description="token limit of one packed micro batch")] = None
    balance_data: Annotated[bool, Meta(description="balance tokens over data parallel ranks")] = False
    skip_zero_advantage: Annotated[
        bool, Meta(description="no pass for samples whose advantage is exactly zero where nothing else needs one")
    ] = True
    optimizer: Annotated[Literal["adam", "sgd"], Meta(description="optimizer")] = "adam"
    lr: Annotated[float, Meta(description="learning rate")] = 1e-6
    min_lr: Annotated[float, Meta(description="floor of the learning rate")] = 0.0
    lr_decay_style: Annotated[
        Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"], Meta(description="schedule")
    ] = "constant"
    lr_decay_iters: Annotated[int | None, Meta(description="optimizer steps to decay over; default: the whole run")] = (
        None
    )
    lr_warmup_iters: Annotated[int, Meta(description="linear warm-up, optimizer steps")] = 0
    weight_decay: Annotated[float, Meta(description="weight decay")] = 0.0
    adam_beta1: Annotated[float, Meta(description="Adam beta 1")] = 0.9
    adam_beta2: Annotated[float, Meta(description="Adam beta 2")] = 0.98
    adam_eps: Annotated[float, Meta(description="Adam epsilon")] = 1e-8
    clip_grad: Annotated[float, Meta(description="gradient norm clip; 0 is off")] = 1.0
    bf16: Annotated[bool, Meta(description="train in bfloat16 with float32 main weights (CPU default: float32)")] = (
        False
    )
    seed: Annotated[int, Meta(description="Megatron's seed")] = 1234
    update_weights_interval: Annotated[int, Meta(description="publish weights every N steps")] = 1
    keep_weights: Annotated[
        int, Meta(description="weight versions kept on disk: the newest N and those with a checkpoint; 0 keeps all")
    ] = 4
    megatron: Annotated[dict[str, Any], Meta(description="other Megatron settings by name")] = field(
        default_factory=dict
    )

    @property
    def world_size(self) -> int:
        """Megatron ranks."""
        return self.actor_num_nodes * self.actor_num_gpus_per_node

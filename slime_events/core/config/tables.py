"""Tables of the flags that are not settings here, with the reason.

No flag is ignored silently. Each flag of slime is in exactly one place: a field of a settings struct (honoured), INERT
(accepted; the reason is printed), ONLY_VALUE (accepted with the value that applies here), or NOT_YET (refused). CLASSIC
has Megatron-LM's argument names that are not fields of megatron-core's config classes.
"""

from typing import Any, Literal

from slime_events.core.config import gateway
from slime_events.core.config.engine_groups import NOT_DIVIDED
from slime_events.core.config.router_flags import NO_ROUTER, ROUTER_REFUSED
from slime_events.core.config.values import Kind, ValueType

Arity = Literal["none", "one", "many"]
"""Number of words that a flag takes: none, exactly one, or at least one."""


_INERT = {
    "Ray detects the devices of each node": "--num-gpus-per-node --rollout-num-gpus-per-node",
    "the device selects the backend: gloo on CPU, NCCL on CUDA": "--distributed-backend",
    NO_ROUTER: (
        "--sglang-router-ip --sglang-router-port --sglang-router-request-timeout-secs --http-proxy "
        "--use-distributed-post!"
    ),
    "recovery is always on: another engine resumes a lost engine's work from its last chunk": (
        "--use-fault-tolerance! --rollout-health-check-interval --rollout-health-check-timeout "
        "--rollout-health-check-first-wait"
    ),
    "prompt files are always indexed and streamed": "--num-data-workers --streaming-data!",
    "a weight version is a set of verified files, which each engine loads": (
        "--update-weight-buffer-size --update-weight-disk-dir --update-weight-disk-keep-files!"
    ),
    "every engine checks the digest of every weight version": "--check-weight-update-equal!",
    "the architecture comes from the checkpoint's config.json": "--model-name",
    "the trainer pads micro batches as its kernels require": "--data-pad-size-multiplier",
    "trainer checkpoints have one format": "--ckpt-format",
    "the critic is in the trainer's checkpoints (--save), so that both are restored at the same step": "--critic-save",
    "a run resumes bit for bit from its checkpoints, so they have the optimizer (--keep-checkpoints N saves space)": (
        "--no-save-optim!"
    ),
    "the trainer draws no random numbers: there is no dropout": "--no-save-rng! --no-load-rng!",
    "the settings of the run always define its schedule": "--override-opt-param-scheduler!",
    "every step is an event with its metrics, and --use-tensorboard and --use-wandb write them": (
        "--log-interval --tensorboard-dir --tensorboard-log-interval --tensorboard-queue-size --wandb-exp-name "
        "--wandb-save-dir --log-throughput! --log-progress! --log-params-norm! --log-num-zeros-in-grad! "
        "--log-timers-to-tensorboard! --log-memory-to-tensorboard! --timing-log-level"
    ),
    "the models are always megatron-core's": "--use-mcore-models!",
    "the stages of an interleaved pipeline always send and receive while they compute": "--overlap-p2p-comm!",
    "the checkpoint defines the position embedding": "--no-position-embedding!",
    "the tokenizer is the checkpoint's": "--tokenizer-model",
    "--num-rollout sets the length of the run": "--train-iters",
    "an evaluation always covers its whole data set": "--eval-iters",
    "the trainer decides when it collects garbage and frees memory": (
        "--manual-gc! --manual-gc-interval --empty-unused-memory-level"
    ),
}
"""Reason to flags. A flag with `!` takes no value, each of the rest takes one."""
INERT: dict[str, tuple[Arity, str]] = {
    word.removesuffix("!"): ("none" if word.endswith("!") else "one", reason)
    for reason, words in _INERT.items()
    for word in words.split()
}

ONLY_VALUE: dict[str, tuple[str, str]] = {
    "--train-backend": (
        "megatron",
        "the trainer is Megatron-core, which loads Hugging Face checkpoints directly, so FSDP would save no "
        "conversion: leave the flag out",
    ),
    "--rollout-data-transport": ("object-store", "rollouts reach the trainer through the log"),
    "--start-rollout-id": (
        "0",
        "a run begins at step 0, and a stopped run resumes where its log ends: `slime-events resume`, or "
        "`slime-events branch` from an earlier version",
    ),
    "--tokenizer-type": ("HuggingFaceTokenizer", "the tokenizer is the checkpoint's"),
    "--spec": (
        "slime_plugins.models.glm4 get_glm_spec",
        "the checkpoint's config.json defines the layers, of the model classes in docs/models.md",
    ),
}
"""Flag to the only accepted words, which apply anyway, and the reason."""

SETTING_VALUES: dict[tuple[str, str], tuple[str, str, object]] = {
    ("--rollout-function-path", "slime.rollout.sft_rollout.generate_rollout"): ("data", "supervised", True),
    (
        "--rollout-function-path",
        "slime.rollout.fully_async_rollout.generate_rollout_fully_async",
    ): ("rollout", "max_staleness", 1),
    ("--update-weight-transport", "nccl"): ("trainer", "update_weight_transport", "disk"),
}
"""(flag, value) of slime to component, field and value here. The flag of that setting overrides it."""

USUAL_VALUES: dict[str, tuple[str, ...]] = {
    "--rollout-function-path": ("slime.rollout.sglang_rollout.generate_rollout",),
    "--data-source-path": (
        "slime.rollout.data_source.RolloutDataSourceWithBuffer",
        "slime.rollout.data_source.RolloutDataSource",
    ),
    "--buffer-filter-path": (
        "slime.rollout.buffer_hub.buffer_filters.pop_first",
        "slime.rollout.data_source.pop_first",
    ),
}
"""slime's own defaults of honoured flags: they mean the same as leaving the flag out."""

ALONE: dict[str, str] = {"--gateway": gateway.DEFAULT}
"""Flags that may have no value, and the value that they then have."""

_NOT_YET = {
    "linear attention models are not built in the trainer": "--qwen-gdn-backend",
    "sparse attention models are not built in the trainer": "--freeze-indexer --allgather-cp",
    "it needs a trainer that stops and restarts around each step": "--release-train",
    NOT_DIVIDED: "--prefill-num-servers",
    "models with image input are not built": "--multimodal-keys",
    "--opd-teacher-load is a Hugging Face folder, which has no steps": "--opd-teacher-ckpt-step",
    "the settings of the run define its schedule, not the checkpoint": "--use-checkpoint-opt-param-scheduler",
    "the optimizer keeps its moments in memory; --reset-optimizer-states resets them at each rollout step": (
        "--use-stateless-adam"
    ),
    "it replays dumps beside engines that make no rollouts, to measure their memory, and engines here make "
    "all rollouts "
    "that are requested: --load-debug-rollout-data replays the same files without engines": (
        "--load-forge-rollout-data"
    ),
    "it needs a profiler hook in the trainer": (
        "--memory-snapshot-dir --memory-snapshot-num-steps --profile-target --memory-recorder --record-memory-history"
    ),
    "rollouts are not fetched from a buffer: programs that make trajectories send them to the run's gateway "
    "(docs/producing-prompts.md), or agents make them through the gateway (docs/agents.md)": (
        "--rollout-buffer-url --fetch-trajectory-retry-times --min-batch-collection-ratio --rollout-task-type"
    ),
    "it needs a block-FP8 forward in the trainer": (
        "--megatron-deepgemm-forward-layers --megatron-deepgemm-forward-modules "
        "--megatron-deepgemm-moe-forward-layers --megatron-deepgemm-moe-forward-modules"
    ),
    "the stages of a pipeline have the same number of layers, except the first and the last with "
    "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers, or with "
    "--account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split": (
        "--pipeline-model-parallel-layout"
    ),
    "a pipeline computes the gradient of the output layer with all others": "--defer-embedding-wgrad-compute",
    "it is an assertion of slime's own CI; log-prob agreement is a metric of each step here": (
        "--ci-test --ci-disable-kl-checker --ci-train-rollout-logprob-abs-diff-threshold --ci-save-grad-norm "
        "--ci-load-grad-norm"
    ),
    "it is a flag of the FSDP backend; Megatron's is --recompute-granularity full": "--gradient-checkpointing",
}
"""Reason to flags."""
NOT_YET: dict[str, str] = {flag: reason for reason, flags in _NOT_YET.items() for flag in flags.split()}
NOT_YET |= ROUTER_REFUSED

NOT_YET_VALUES: dict[tuple[str, str], str] = {
    ("--rollout-function-path", "slime.rollout.sleep_rollout"): (
        "it holds idle engines indefinitely, and a run fails without progress (--rollout-deadline): write a function "
        "that sleeps as long as you need, or use the engines of a --debug-rollout-only run"
    ),
    ("--rollout-function-path", "slime.rollout.forge_load"): (
        "it replays dumps beside engines that make no rollouts, to measure their memory, and engines here make all "
        "rollouts that are requested: --load-debug-rollout-data replays the same files without engines"
    ),
}
"""(flag, value or module of the value) of honoured flags to the reason why only slime supports it."""

MEGATRON_IDLE: dict[str, str] = {
    "seq_length": "--rollout-max-context-len limits the length of a sample",
    "max_position_embeddings": "the checkpoint's config.json sets it",
    "make_vocab_size_divisible_by": "the vocabulary is the checkpoint's, without padding",
    "accumulate_allreduce_grads_in_fp32": "gradients are always summed in float32",
    "use_precision_aware_optimizer": (
        "weights, gradients and moments of the optimizer are always kept in float32, by the trainer itself"
    ),
}
"""Megatron's settings that have no effect, and the reason."""

MEGATRON_CUDA = frozenset((
    "apply_rope_fusion", "masked_softmax_fusion", "bias_activation_fusion", "bias_dropout_fusion",
    "gradient_accumulation_fusion", "persist_layer_norm", "cross_entropy_loss_fusion", "tp_comm_overlap",
    "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
    "attention_backend", "optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d",
    "optimizer_offload_fraction", "overlap_param_gather", "overlap_grad_reduce", "sequence_parallel",
    "transformer_impl", "fp8", "fp8_recipe", "moe_router_fusion", "moe_layer_recompute",
))  # fmt: skip
"""Megatron's settings for which the CPU has no kernels or no CUDA random state; a CPU run does not use them."""

SLIME_DEFAULTS: dict[tuple[str, str], Any] = {
    ("rollout", "rollout_batch_size"): "required",
    ("rollout", "n_samples_per_prompt"): 1,
    ("rollout", "rollout_max_response_len"): "no limit of its own",
    ("trainer", "lr_decay_style"): "linear",
    ("trainer", "weight_decay"): 0.01,
    ("trainer", "adam_beta2"): 0.999,
}
"""(component, field) to slime's (or Megatron's) default, where ours differs and changes results."""

_SGLANG_OURS = {
    "--hf-checkpoint": "model_path tokenizer_path",
    "--rollout-num-gpus-per-engine": "tp_size",
    "--device": "device",
    "--deterministic": "enable_deterministic_inference",
    "nothing: the engine gets tokens": "skip_tokenizer_init",
    "nothing: engines take no HTTP requests": "host port",
    "nothing: Ray places engines": "nccl_port dist_init_addr nnodes node_rank base_gpu_id gpu_id_step",
}
SGLANG_OURS: dict[str, str] = {name: use for use, names in _SGLANG_OURS.items() for name in names.split()}
"""ServerArgs that the engine deployment sets, and the flag to use instead."""

SGLANG_RENAMED: dict[str, str] = {
    "cuda_graph_bs": "cuda_graph_bs_decode",
    "cuda_graph_max_bs": "cuda_graph_max_bs_decode",
}
"""Names in older SGLang releases to names in newer ones."""


_INT = ValueType((Kind.INT,))
_NUMBER = ValueType((Kind.INT, Kind.FLOAT))
_FLOAT = ValueType((Kind.FLOAT,))
_TEXT = ValueType((Kind.STR,))


_CLASSIC: tuple[tuple[ValueType | bool | str, str], ...] = (
    (
        False,
        "--disable-bias-linear=add_bias_linear --no-rope-fusion=apply_rope_fusion "
        "--no-masked-softmax-fusion=masked_softmax_fusion --no-bias-swiglu-fusion=bias_activation_fusion "
        "--no-bias-gelu-fusion=bias_activation_fusion --no-persist-layer-norm=persist_layer_norm "
        "--no-check-for-nan-in-loss-and-grad=check_for_nan_in_grad",
    ),
    ("flash", "--use-flash-attn=attention_backend"),
    ("selective", "--recompute-activations=recompute_granularity"),
    (
        True,
        "--swiglu --group-query-attention --use-rotary-position-embeddings --use-rope-scaling "
        "--untie-embeddings-and-output-weights --accumulate-allreduce-grads-in-fp32 --post-self-attn-layernorm "
        "--post-mlp-layernorm --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
    ),
    (
        _INT,
        "--num-experts=num_moe_experts --vocab-size --padded-vocab-size --make-vocab-size-divisible-by --seq-length "
        "--max-position-embeddings --mtp-num-layers --lr-wsd-decay-iters "
        "--decoder-first-pipeline-num-layers=num_layers_in_first_pipeline_stage "
        "--decoder-last-pipeline-num-layers=num_layers_in_last_pipeline_stage "
        "--num-virtual-stages-per-pipeline-rank=virtual_pipeline_model_parallel_size "
        "--virtual-pipeline-model-parallel-size --num-layers-per-virtual-pipeline-stage "
        "--microbatch-group-size-per-virtual-pipeline-stage=microbatch_group_size_per_vp_stage",
    ),
    (_NUMBER, "--rotary-base"),
    (
        _FLOAT,
        "--norm-epsilon --rotary-percent --rope-scaling-factor --lr-warmup-init --start-weight-decay "
        "--end-weight-decay",
    ),
    (ValueType((Kind.STR,), choices=("constant", "linear", "cosine")), "--weight-decay-incr-style"),
    (_TEXT, "--fp8-format=fp8 --position-embedding-type --attention-backend --lr-wsd-decay-style"),
)
CLASSIC: dict[str, tuple[str, ValueType | bool | str]] = {
    flag: (name or flag.removeprefix("--").replace("-", "_"), value)
    for value, words in _CLASSIC
    for flag, _, name in (word.partition("=") for word in words.split())
}
"""Classic flag to the Megatron setting that it sets, and the type of its value or the value of a switch.

If a megatron-core field means the same, the field's name is used. Names that describe the architecture keep theirs, and
the trainer compares their values with the checkpoint.
"""

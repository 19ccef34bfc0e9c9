"""slime's flags that are not settings here, as literal tables: what is accepted and why, what is not and what it needs.

Nothing is ignored in silence. Every flag of slime's is in exactly one place: a field of a settings struct (honoured),
INERT (accepted; the reason is printed), ONLY_VALUE (accepted with the one value that is so here), or NOT_YET (refused).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Arity = Literal["none", "one", "many"]
"""Words that a flag takes: none, exactly one, or one and more."""


class Inert(NamedTuple):
    """A flag that is accepted and changes nothing."""

    arity: Arity
    reason: str


class OnlyValue(NamedTuple):
    """A flag that can only say what is so anyway."""

    values: tuple[str, ...]
    reason: str


_SIDE_BY_SIDE = "trainer and engines are separate processes side by side, and nothing is moved off a device"
_NO_ROUTER = "there is no router: engines pull their work from the log when they have room"
_RECOVERY = "recovery is always on: a lost engine's work is delivered again and goes on from its last chunk"
_STREAMED = "prompt files are always indexed and streamed"
_WEIGHT_FILES = "a weight version is a set of verified files, which every engine loads for itself"

INERT: dict[str, Inert] = {
    "--colocate": Inert("none", _SIDE_BY_SIDE),
    "--offload": Inert("none", _SIDE_BY_SIDE),
    "--offload-train": Inert("none", _SIDE_BY_SIDE),
    "--no-offload-train": Inert("none", _SIDE_BY_SIDE),
    "--offload-rollout": Inert("none", _SIDE_BY_SIDE),
    "--no-offload-rollout": Inert("none", _SIDE_BY_SIDE),
    "--num-gpus-per-node": Inert("one", "Ray finds the devices of each node by itself"),
    "--distributed-backend": Inert("one", "the device decides: gloo on CPU, NCCL on CUDA"),
    "--sglang-router-ip": Inert("one", _NO_ROUTER),
    "--sglang-router-port": Inert("one", _NO_ROUTER),
    "--sglang-router-request-timeout-secs": Inert("one", _NO_ROUTER),
    "--http-proxy": Inert("one", _NO_ROUTER),
    "--use-distributed-post": Inert("none", _NO_ROUTER),
    "--use-fault-tolerance": Inert("none", _RECOVERY),
    "--rollout-health-check-interval": Inert("one", _RECOVERY),
    "--rollout-health-check-timeout": Inert("one", _RECOVERY),
    "--rollout-health-check-first-wait": Inert("one", _RECOVERY),
    "--num-data-workers": Inert("one", _STREAMED),
    "--streaming-data": Inert("none", _STREAMED),
    "--update-weight-buffer-size": Inert("one", _WEIGHT_FILES),
    "--update-weight-transport": Inert("one", _WEIGHT_FILES),
    "--update-weight-disk-dir": Inert("one", _WEIGHT_FILES),
    "--update-weight-disk-keep-files": Inert("none", _WEIGHT_FILES),
    "--check-weight-update-equal": Inert("none", "every engine checks the digest of every weight version"),
    "--model-name": Inert("one", "the architecture comes from the checkpoint's config.json"),
    "--log-probs-max-tokens-per-gpu": Inert("one", "log-prob passes use --max-tokens-per-gpu"),
    "--data-pad-size-multiplier": Inert("one", "the trainer pads micro batches as its kernels need"),
    "--ckpt-format": Inert("one", "trainer checkpoints have one format"),
    "--log-interval": Inert("one", "every step is an event with its metrics"),
    "--use-mcore-models": Inert("none", "the models are always megatron-core's"),
    "--no-position-embedding": Inert("none", "the checkpoint says which position embedding it has"),
    "--tokenizer-model": Inert("one", "the tokenizer is the checkpoint's"),
    "--train-iters": Inert("one", "--num-rollout says how long the run is"),
    "--eval-iters": Inert("one", "an evaluation is over its whole data set"),
}
INERT_PREFIXES: dict[str, str] = {"--router-": _NO_ROUTER}
"""Families of flags that take whatever words follow."""

ONLY_VALUE: dict[str, OnlyValue] = {
    "--train-backend": OnlyValue(
        ("megatron",),
        "the trainer is Megatron-core, which loads Hugging Face checkpoints directly, so the conversion that FSDP "
        "saved is not needed: leave the flag out",
    ),
    "--loss-type": OnlyValue(("policy_loss",), "SFT and custom losses need their own plug point in the trainer"),
    "--update-weight-mode": OnlyValue(("full",), "delta weight versions need a delta writer in the weight store"),
    "--rollout-data-transport": OnlyValue(("object-store",), "rollouts reach the trainer through the log"),
    "--rollout-function-path": OnlyValue(
        ("slime.rollout.sglang_rollout.generate_rollout",),
        "a rollout function of one's own needs a plug point in the engine",
    ),
    "--eval-function-path": OnlyValue(
        ("slime.rollout.sglang_rollout.generate_rollout",),
        "an eval function of one's own needs a plug point in the engine",
    ),
    "--log-probs-chunk-size": OnlyValue(("-1",), "chunked log-probs need support in the trainer's loss"),
    "--tokenizer-type": OnlyValue(("HuggingFaceTokenizer",), "the tokenizer is the checkpoint's"),
}

USUAL_VALUES: dict[str, tuple[str, ...]] = {
    "--data-source-path": (
        "slime.rollout.data_source.RolloutDataSourceWithBuffer",
        "slime.rollout.data_source.RolloutDataSource",
    ),
    "--buffer-filter-path": (
        "slime.rollout.buffer_hub.buffer_filters.pop_first",
        "slime.rollout.data_source.pop_first",
    ),
}
"""slime's own defaults of honoured flags: they ask for nothing beside what is done without the flag."""

_CRITIC = "it needs a critic model and its value loss in the trainer"
_TRAINER_HOOK = "it needs a plug point in the trainer"
_PLUG = "its plug point does not exist; graders (--custom-rm-path) and --dynamic-sampling-filter-path do"
_OPD = "on-policy distillation needs a teacher model"
_SINK = "it needs a metrics sink; every metric is in the log: `slime-events show RUN`"
_ROUTING = "it needs the engine's expert routing in the rollout events"
_MTP = "multi-token prediction layers are not built in the trainer"
_PROFILE = "it needs a profiler hook in the trainer"
_DELTA = "delta weight versions need a delta writer in the weight store"
_DEEPGEMM = "it needs a block-FP8 forward in the trainer"
_BUFFER_SERVICE = "prompts and trajectories of another service are published to the run: `slime-events produce`"
_SFT = "supervised losses need their own plug point in the trainer"
_CI = "it is an assertion of slime's own CI; log-prob agreement is a metric of every step here"
_PARAM_LIST = "it needs partly frozen models in the trainer"
_ENGINE_GROUPS = "it needs engines of several kinds in one run"
_WHOLE_CHECKPOINT = "a trainer checkpoint is written and restored whole"
_LOSS_MEMORY = "it needs recomputation of the loss in the trainer"

NOT_YET: dict[str, str] = {
    "--critic-num-nodes": _CRITIC,
    "--critic-num-gpus-per-node": _CRITIC,
    "--critic-load": _CRITIC,
    "--critic-save": _CRITIC,
    "--critic-lr": _CRITIC,
    "--critic-lr-warmup-iters": _CRITIC,
    "--num-critic-only-steps": _CRITIC,
    "--value-clip": _CRITIC,
    "--rollout-sample-hook-path": _PLUG,
    "--custom-rollout-log-function-path": _PLUG,
    "--custom-eval-rollout-log-function-path": _PLUG,
    "--rollout-data-postprocess-path": _PLUG,
    "--rollout-sample-filter-path": _PLUG,
    "--rollout-all-samples-process-path": _PLUG,
    "--custom-reward-post-process-path": _PLUG,
    "--custom-convert-samples-to-train-data-path": _PLUG,
    "--custom-update-weight-post-write-path": _PLUG,
    "--custom-loss-function-path": _TRAINER_HOOK,
    "--custom-advantage-function-path": _TRAINER_HOOK,
    "--custom-tis-function-path": _TRAINER_HOOK,
    "--custom-pg-loss-reducer-function-path": _TRAINER_HOOK,
    "--custom-model-provider-path": _TRAINER_HOOK,
    "--custom-megatron-init-path": _TRAINER_HOOK,
    "--custom-megatron-before-log-prob-hook-path": _TRAINER_HOOK,
    "--custom-megatron-before-train-step-hook-path": _TRAINER_HOOK,
    "--custom-config-path": "settings have types here; put them into a TOML file and give it with --config",
    "--megatron-config-path": "put Megatron's settings into [trainer.megatron] of a TOML file (--config)",
    "--train-env-vars": "it needs a way to set the environment of trainer ranks alone",
    "--qwen-gdn-backend": "linear attention models are not built in the trainer",
    "--freeze-indexer": "sparse attention models are not built in the trainer",
    "--allgather-cp": "sparse attention models are not built in the trainer",
    "--release-train": "it needs a trainer that is stopped and made anew around each step",
    "--update-weight-delta-encoding": _DELTA,
    "--update-weight-delta-checksum": _DELTA,
    "--update-weight-local-checkpoint-dir": _DELTA,
    "--recompute-loss-function": _LOSS_MEMORY,
    "--only-train-params-name-list": _PARAM_LIST,
    "--freeze-params-name-list": _PARAM_LIST,
    "--keep-old-actor": "it needs a second copy of the weights in the trainer",
    "--ref-update-interval": "it needs a reference model that follows the actor",
    "--rollout-external-engine-addrs": "it needs engines that this run did not start",
    "--prefill-num-servers": _ENGINE_GROUPS,
    "--sglang-config": _ENGINE_GROUPS,
    "--disable-rollout-global-dataset": "leave --prompt-data out, and publish prompts: `slime-events produce`",
    "--multimodal-keys": "models that see images are not built",
    "--start-rollout-id": "a run goes on where its log ends",
    "--balance-by-flops": "micro batches are balanced by tokens (--balance-data)",
    "--eval-config": "give the data sets with --eval-prompt-data NAME PATH",
    "--eval-tool-key": "evaluation has no tools of its own",
    "--eval-max-prompt-len": "evaluation has no prompt limit of its own (--rollout-max-prompt-len)",
    "--eval-min-new-tokens": "evaluation has no lower length limit",
    "--eval-max-context-len": "evaluation has no context limit of its own (--rollout-max-context-len)",
    "--ref-ckpt-step": "--ref-load is a Hugging Face folder, which has no steps",
    "--async-save": _WHOLE_CHECKPOINT,
    "--no-save-optim": _WHOLE_CHECKPOINT,
    "--no-save-rng": _WHOLE_CHECKPOINT,
    "--no-load-optim": _WHOLE_CHECKPOINT,
    "--no-load-rng": _WHOLE_CHECKPOINT,
    "--finetune": _WHOLE_CHECKPOINT,
    "--save-hf": "every weight version is a Hugging Face folder already: see `weights/` in the run's folder",
    "--disable-compute-advantages-and-returns": _SFT,
    "--loss-mask-type": _SFT,
    "--use-rollout-entropy": "entropy is measured in the training pass only",
    "--get-mismatch-metrics": "the agreement of engine and trainer log-probs is a metric of every step",
    "--reset-optimizer-states": "it needs an optimizer that forgets between steps",
    "--use-stateless-adam": "it needs an optimizer without moments",
    "--use-routing-replay": _ROUTING,
    "--use-rollout-routing-replay": _ROUTING,
    "--use-opd": _OPD,
    "--opd-type": _OPD,
    "--opd-kl-coef": _OPD,
    "--opd-teacher-load": _OPD,
    "--opd-teacher-ckpt-step": _OPD,
    "--use-wandb": _SINK,
    "--wandb-mode": _SINK,
    "--wandb-dir": _SINK,
    "--wandb-key": _SINK,
    "--wandb-host": _SINK,
    "--wandb-team": _SINK,
    "--wandb-group": _SINK,
    "--wandb-project": _SINK,
    "--wandb-run-id": _SINK,
    "--disable-wandb-random-suffix": _SINK,
    "--wandb-always-use-train-step": _SINK,
    "--log-multi-turn": _SINK,
    "--log-passrate": _SINK,
    "--log-reward-category": _SINK,
    "--log-correct-samples": _SINK,
    "--use-tensorboard": _SINK,
    "--tb-project-name": _SINK,
    "--tb-experiment-name": _SINK,
    "--load-forge-rollout-data": "it plays dumps beside engines that make no rollouts, to measure their memory, and "
    "engines here make whatever is asked for: --load-debug-rollout-data plays the same files without engines",
    "--memory-snapshot-dir": _PROFILE,
    "--memory-snapshot-num-steps": _PROFILE,
    "--profile-target": _PROFILE,
    "--memory-recorder": _PROFILE,
    "--record-memory-history": _PROFILE,
    "--rollout-buffer-url": _BUFFER_SERVICE,
    "--fetch-trajectory-retry-times": _BUFFER_SERVICE,
    "--min-batch-collection-ratio": _BUFFER_SERVICE,
    "--rollout-task-type": _BUFFER_SERVICE,
    "--megatron-deepgemm-forward-layers": _DEEPGEMM,
    "--megatron-deepgemm-forward-modules": _DEEPGEMM,
    "--megatron-deepgemm-moe-forward-layers": _DEEPGEMM,
    "--megatron-deepgemm-moe-forward-modules": _DEEPGEMM,
    "--mtp-num-layers": _MTP,
    "--mtp-loss-scaling-factor": _MTP,
    "--enable-mtp-training": _MTP,
    "--ci-test": _CI,
    "--ci-disable-kl-checker": _CI,
    "--ci-train-rollout-logprob-abs-diff-threshold": _CI,
    "--ci-save-grad-norm": _CI,
    "--ci-load-grad-norm": _CI,
    "--padded-vocab-size": "the vocabulary size is the checkpoint's",
    "--lr-warmup-fraction": "give the warm-up in optimizer steps (--lr-warmup-iters)",
    "--weight-decay-incr-style": "weight decay is constant",
    "--use-checkpoint-opt-param-scheduler": _WHOLE_CHECKPOINT,
    "--override-opt-param-scheduler": _WHOLE_CHECKPOINT,
    "--gradient-checkpointing": "it is a flag of the FSDP backend; Megatron's is --recompute-granularity full",
}

NOT_YET_VALUES: dict[tuple[str, str], str] = {
    ("--advantage-estimator", "ppo"): _CRITIC,
    ("--rm-type", "ifbench"): "the IFBench package is not built in; a grader of your own is (--custom-rm-path)",
}
"""Values of honoured flags that slime has and this does not."""

SGLANG_OURS: dict[str, str] = {
    "model_path": "--hf-checkpoint",
    "tokenizer_path": "--hf-checkpoint",
    "tp_size": "--rollout-num-gpus-per-engine",
    "device": "--device",
    "enable_deterministic_inference": "--deterministic",
    "skip_tokenizer_init": "nothing: the engine is given tokens",
    "host": "nothing: engines take no HTTP requests",
    "port": "nothing: engines take no HTTP requests",
    "nccl_port": "nothing: Ray places engines",
    "dist_init_addr": "nothing: Ray places engines",
    "nnodes": "nothing: Ray places engines",
    "node_rank": "nothing: Ray places engines",
    "base_gpu_id": "nothing: Ray places engines",
    "gpu_id_step": "nothing: Ray places engines",
}
"""ServerArgs that the engine deployment sets itself, and the flag to use instead."""

SGLANG_RENAMED: dict[str, str] = {
    "cuda_graph_bs": "cuda_graph_bs_decode",
    "cuda_graph_max_bs": "cuda_graph_max_bs_decode",
}
"""Names of older SGLang releases, for where the installed one no longer knows them."""

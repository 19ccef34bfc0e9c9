"""Settings of the trainer, with Megatron's names: parallelism, optimizer, batching."""

from typing import Annotated, Any, Literal

from msgspec import field

from slime_events.core.config.base import doc
from slime_events.core.config.delta_settings import DeltaSettings
from slime_events.core.config.rules import (
    Later,
    at_least,
    at_most,
    equals,
    excludes,
    is_below,
    needs,
    unused_with,
    unused_without,
)

_OF_A_CRITIC = unused_without("advantage_estimator:needs_values", why="{advantage_estimator} has no critic")
_SHARED_RANKS = "the critic shares the actor's ranks, so that one commit holds both. Leave it out"


class TrainerSettings(DeltaSettings, frozen=True, kw_only=True):
    """A trainer of `actor_num_nodes x actor_num_gpus_per_node` Megatron ranks.

    The checkpoint's config.json sets the architecture. `megatron` holds all further Megatron flags by their Megatron
    names; they must not contradict the checkpoint.
    """

    actor_num_nodes: Annotated[int, doc("trainer nodes", above=0, never=Later.BRANCH_WITH_OPTIMIZER)] = 1
    actor_num_gpus_per_node: Annotated[
        int, doc("trainer ranks per node (GPUs, or CPU processes)", above=0, never=Later.BRANCH_WITH_OPTIMIZER)
    ] = 1
    tensor_model_parallel_size: Annotated[
        int, doc("tensor parallel ranks", above=0, never=Later.BRANCH_WITH_OPTIMIZER)
    ] = 1
    pipeline_model_parallel_size: Annotated[
        int, doc("pipeline parallel ranks: each has some of the layers", above=0, never=Later.BRANCH_WITH_OPTIMIZER)
    ] = 1
    context_parallel_size: Annotated[
        int,
        doc("ranks over which each sequence is cut (docs/models.md)", above=0, never=Later.BRANCH_WITH_OPTIMIZER),
    ] = 1
    sequence_parallel: Annotated[bool, doc("use sequence parallelism with tensor parallelism")] = False
    distributed_timeout_minutes: Annotated[
        int, doc("timeout of process groups, in minutes", above=0, also=Later.RESUME)
    ] = 10
    hang_seconds: Annotated[
        float | None,
        doc(
            "seconds without a micro batch after which ranks that train are restarted; 0: never; default: 180 on GPU, "
            "never on CPU",
            least=0,
            also=Later.RESUME,
        ),
    ] = None
    global_batch_size: Annotated[int | None, doc("rollouts per optimizer step", above=0)] = None
    num_steps_per_rollout: Annotated[int | None, doc("optimizer steps per rollout step", above=0)] = None
    micro_batch_size: Annotated[
        int,
        doc(
            "samples per forward pass, without dynamic batching",
            unused_with("use_dynamic_batch_size", why="use_dynamic_batch_size packs micro batches by tokens"),
            above=0,
        ),
    ] = 1
    use_dynamic_batch_size: Annotated[
        bool,
        doc(
            "pack micro batches by tokens instead of samples",
            needs("max_tokens_per_gpu", why="it packs micro batches up to that many tokens"),
        ),
    ] = False
    max_tokens_per_gpu: Annotated[
        int | None, doc("most tokens of a packed micro batch", unused_without("use_dynamic_batch_size"), above=0)
    ] = None
    log_probs_max_tokens_per_gpu: Annotated[
        int | None,
        doc(
            "most tokens of a micro batch that scores log-probs without gradient; default: max-tokens-per-gpu",
            unused_without("use_dynamic_batch_size"),
            above=0,
        ),
    ] = None
    log_probs_chunk_size: Annotated[
        int | None,
        doc(
            "response tokens per chunk of logits: fewer need less memory; -1: all; default: 1,024 on GPU, all on CPU",
            least=-1,
        ),
    ] = None
    recompute_loss_function: Annotated[
        bool, doc("recompute log-probs and entropy in the backward pass: saves memory if entropy-coef is not 0")
    ] = False
    use_routing_replay: Annotated[
        bool,
        doc(
            "all updates of a rollout step use the experts that the routers chose for each token before the first "
            "update; for mixtures of experts",
            excludes("tree_packing", why="samples that share a prefix share its experts"),
        ),
    ] = False
    use_rollout_routing_replay: Annotated[
        bool,
        doc(
            "use-routing-replay with the experts that the engine's routers chose, which the log then has",
            excludes("tree_packing", why="samples that share a prefix share its experts"),
            excludes("tinker", "rollout_function_path", "agents", why="their samples have no experts of the engine"),
        ),
    ] = False
    enable_mtp_training: Annotated[
        bool,
        doc(
            "train the checkpoint's multi-token prediction layer on the trained tokens; its loss changes no other "
            "parameter",
            excludes("tree_packing", why="the layer needs the next token of each sample"),
            excludes(
                "use_routing_replay", "use_rollout_routing_replay", why="the experts of the layer are not recorded"
            ),
            excludes("custom_model_provider_path", why="the trainer builds the layer"),
            excludes("tinker", why="a client's passes do not train the layer"),
        ),
    ] = False
    mtp_loss_scaling_factor: Annotated[
        float,
        doc("factor of the multi-token prediction loss", unused_without("enable_mtp_training"), least=0.0),
    ] = 0.2
    balance_data: Annotated[bool, doc("balance tokens over data parallel ranks")] = False
    balance_by_flops: Annotated[
        bool,
        doc(
            "pack micro batches and balance ranks by estimated FLOPs: attention is quadratic in the length",
            unused_without(
                "use_dynamic_batch_size",
                "balance_data",
                "micro_batch_size=1",
                why="neither use_dynamic_batch_size nor balance_data is set",
            ),
        ),
    ] = False
    tree_packing: Annotated[
        bool,
        doc(
            "compute the shared prefix of samples in a micro batch only once, if that is less work; for "
            "ranks on the CPU",
            excludes("loss_type=custom_loss", why="your function expects the logits of each whole sample"),
            excludes("custom_model_provider_path", why="your model may not accept position ids"),
            excludes("tinker", why="a client's datums are packed in their order"),
            excludes("context_parallel_size!=1", why="ranks that each have a part of a sequence share no prefixes"),
            excludes(
                "micro_batch_size!=1",
                why="it packs samples that share a prefix by tokens, as use_dynamic_batch_size does, not by samples",
                unless=("use_dynamic_batch_size",),
            ),
        ),
    ] = False
    only_train_params_name_list: Annotated[
        list[str],
        doc(
            "regular expressions: train only parameters with a match in their (Megatron) name",
            never=Later.BRANCH_WITH_OPTIMIZER,
        ),
    ] = field(default_factory=list)
    freeze_params_name_list: Annotated[
        list[str],
        doc(
            "regular expressions: do not train parameters with a match in their (Megatron) name",
            never=Later.BRANCH_WITH_OPTIMIZER,
        ),
    ] = field(default_factory=list)
    train_env_vars: Annotated[dict[str, str], doc("JSON: environment variables for the trainer's processes only")] = (
        field(default_factory=dict)
    )
    skip_zero_advantage: Annotated[
        bool, doc("skip samples whose advantage is exactly zero, if nothing else needs their forward pass")
    ] = True
    optimizer: Annotated[Literal["adam", "sgd"], doc("optimizer", never=Later.BRANCH_WITH_OPTIMIZER)] = "adam"
    lr: Annotated[float, doc("learning rate", least=0)] = 1e-6
    critic_load: Annotated[
        str | None,
        doc(
            "first weights of ppo's critic: Hugging Face folder, or trainer checkpoint with a critic; "
            "default: the actor's",
            _OF_A_CRITIC,
        ),
    ] = None
    critic_lr: Annotated[
        float | None,
        doc(
            "the critic's learning rate; default: lr",
            _OF_A_CRITIC,
            at_least("min_lr", why="the lowest rate would exceed the first"),
            least=0,
        ),
    ] = None
    critic_lr_warmup_iters: Annotated[
        int,
        doc(
            "linear warm-up of the critic, in optimizer steps",
            _OF_A_CRITIC,
            is_below("lr_decay_iters", why="the rate would never decay"),
            least=0,
        ),
    ] = 0
    critic_num_nodes: Annotated[
        int | None,
        doc(
            "must equal actor-num-nodes: the critic shares the actor's ranks",
            _OF_A_CRITIC,
            equals("actor_num_nodes", why=_SHARED_RANKS),
            above=0,
        ),
    ] = None
    critic_num_gpus_per_node: Annotated[
        int | None,
        doc(
            "must equal actor-num-gpus-per-node: the critic shares the actor's ranks",
            _OF_A_CRITIC,
            equals("actor_num_gpus_per_node", why=_SHARED_RANKS),
            above=0,
        ),
    ] = None
    min_lr: Annotated[
        float, doc("lowest learning rate", at_most("lr", why="the lowest rate would exceed the first"), least=0)
    ] = 0.0
    lr_decay_style: Annotated[
        Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"], doc("learning rate schedule")
    ] = "constant"
    lr_decay_iters: Annotated[
        int | None, doc("length of the decay, in optimizer steps; default: the whole run", above=0)
    ] = None
    lr_warmup_iters: Annotated[
        int,
        doc(
            "linear warm-up, in optimizer steps",
            is_below("lr_decay_iters", why="the rate would never decay", unless=("lr_warmup_fraction",)),
            least=0,
        ),
    ] = 0
    lr_warmup_fraction: Annotated[
        float | None,
        doc(
            "linear warm-up as a share of lr-decay-iters, instead of lr-warmup-iters",
            excludes("lr_warmup_iters", why="both set the length of the warm-up"),
            least=0,
            below=1,
        ),
    ] = None
    weight_decay: Annotated[float, doc("weight decay", least=0)] = 0.0
    adam_beta1: Annotated[float, doc("Adam beta 1", least=0, below=1)] = 0.9
    adam_beta2: Annotated[float, doc("Adam beta 2", least=0, below=1)] = 0.98
    adam_eps: Annotated[float, doc("Adam epsilon")] = 1e-8
    reset_optimizer_states: Annotated[
        bool, doc("reset Adam's moments and step count at the start of each rollout step")
    ] = False
    clip_grad: Annotated[float, doc("gradient norm clip; 0: off", least=0)] = 1.0
    bf16: Annotated[
        bool | None,
        doc(
            "train in bfloat16 with float32 main weights; default: on for GPU, off for CPU",
            never=Later.BRANCH | Later.BRANCH_WITH_OPTIMIZER,
        ),
    ] = None
    seed: Annotated[int, doc("seed of Megatron")] = 1234
    deterministic_mode: Annotated[
        bool, doc("use deterministic kernels and collectives; ranks on the CPU always do (Megatron's flag)")
    ] = False
    exact: Annotated[
        bool,
        doc("fail the run if a step that is trained again after a restart gives different bits", also=Later.RESUME),
    ] = False
    max_retrained_steps: Annotated[
        int | None,
        doc(
            "most steps since its checkpoint that a restarted trainer trains again; after more steps it loads the "
            "newest weights and approximates the optimizer by the checkpoint's; -1: no limit; default: 8 on GPU, -1 on "
            "CPU",
            least=-1,
            also=Later.RESUME,
        ),
    ] = None
    optimizer_digest: Annotated[
        Literal["every", "checkpoint", "off"] | None,
        doc(
            "hash the optimizer's state after these steps; default: checkpoint on GPU, every on CPU", also=Later.RESUME
        ),
    ] = None
    update_weights_interval: Annotated[int, doc("publish weights every N steps", above=0)] = 1
    keep_weights: Annotated[
        int,
        doc(
            "keep the newest N weight versions on disk, and those with a checkpoint; 0: all", least=0, also=Later.RESUME
        ),
    ] = 4
    keep_weights_every: Annotated[
        int | None,
        doc(
            "also keep the weights of every Nth version, permanently",
            needs("keep_weights", why="keep_weights 0 keeps all"),
            above=0,
            also=Later.RESUME,
        ),
    ] = None
    custom_megatron_init_path: Annotated[
        str | None,
        doc("your function to call in each rank after Megatron's groups exist, before the model is built: (args)"),
    ] = None
    custom_model_provider_path: Annotated[
        str | None,
        doc(
            "your function that builds each rank's model, with the checkpoint's parameters: (pre_process, "
            "post_process, "
            "vp_stage=None)"
        ),
    ] = None
    custom_megatron_before_log_prob_hook_path: Annotated[
        str | None, doc("your function to call in each rank before log-probs are scored: (args, model, store_prefix)")
    ] = None
    custom_megatron_before_train_step_hook_path: Annotated[
        str | None,
        doc(
            "your function to call in each rank before each optimizer step: (args, rollout_id, step_id, model, "
            "optimizer, opt_param_scheduler)"
        ),
    ] = None
    custom_update_weight_post_write_path: Annotated[
        str | None,
        doc(
            "your function to call in each rank with the folder of each weight version, before it is published: (args, "
            "version_dir, rollout_engines)",
            needs("store_before_commit", why="it sees the files before the version is published"),
        ),
    ] = None
    megatron: Annotated[dict[str, Any], doc("further Megatron settings by name")] = field(default_factory=dict)

    @property
    def deterministic(self) -> bool:
        """Whether deterministic mode is on; earlier releases recorded it in `megatron`."""
        return self.deterministic_mode or bool(self.megatron.get("deterministic_mode", False))

    def hashes_optimizer(self, version: int) -> bool:
        """Return whether the optimizer's digest is computed at the version that a step makes."""
        if self.optimizer_digest == "checkpoint":
            return self.saves.due(version)
        return self.optimizer_digest != "off"

    @property
    def retrains(self) -> int:
        """The most steps that a restarted trainer trains again; -1: no limit, as in earlier releases."""
        most = self.max_retrained_steps
        return -1 if most is None or self.exact else most

    @property
    def world_size(self) -> int:
        """The number of Megatron ranks."""
        return self.actor_num_nodes * self.actor_num_gpus_per_node

"""What the trainer runs: parallelism, optimizer, batching, checkpoints. Megatron's names."""

from typing import Annotated, Any, Literal

from msgspec import field

from slime_events.core.config.base import Settings, doc
from slime_events.core.config.save_steps import SaveSteps


class TrainerSettings(Settings, frozen=True, kw_only=True):
    """One trainer of `actor_num_nodes x actor_num_gpus_per_node` Megatron ranks.

    The architecture comes from the HF checkpoint's config.json; `megatron` holds every other Megatron flag that was
    given, by its Megatron name, and must not contradict the checkpoint.
    """

    hf_checkpoint: Annotated[str, doc("HF folder: tokenizer, config, first weights")] = ""
    ref_load: Annotated[str | None, doc("HF folder of the reference model; default: hf-checkpoint")] = None
    opd_teacher_load: Annotated[
        str | None, doc("HF folder of the teacher of use-opd, of the student's vocabulary, whatever its size")
    ] = None
    load: Annotated[str | None, doc("trainer checkpoint (or HF folder) to start from")] = None
    load_optim: Annotated[bool, doc("take optimizer and schedule of load too, not its weights alone")] = True
    save: Annotated[str | None, doc("folder for trainer checkpoints; default: the run folder")] = None
    save_interval: Annotated[
        int | None,
        doc(
            "save a checkpoint every N steps, at the end of an epoch, and after the last step; 0: none; default: 20 "
            "on GPU, where the newest 2 are kept then, none on CPU",
            least=0,
        ),
    ] = None
    save_epoch: Annotated[
        int | None, doc("with save-interval, a checkpoint every N steps too; num-epoch sets it to an epoch's", above=0)
    ] = None
    save_last: Annotated[
        int | None, doc("with save-interval, a checkpoint after step N too; default: the last one", above=0)
    ] = None
    async_save: Annotated[
        bool,
        doc(
            "a checkpoint is copied to host memory and written while the next steps train; the log has it once on disk"
        ),
    ] = False
    save_hf: Annotated[
        str | None,
        doc("path with {rollout_id}: with each checkpoint, its weights as a Hugging Face folder of their own"),
    ] = None
    keep_checkpoints: Annotated[int, doc("checkpoints kept on disk: the newest N; 0 keeps all", least=0)] = 0
    keep_checkpoints_every: Annotated[
        int | None, doc("beside the newest, keep the checkpoint of every Nth version for ever", above=0)
    ] = None
    actor_num_nodes: Annotated[int, doc("trainer nodes", above=0)] = 1
    actor_num_gpus_per_node: Annotated[int, doc("trainer ranks per node (GPUs, or CPU processes)", above=0)] = 1
    tensor_model_parallel_size: Annotated[int, doc("tensor parallel ranks", above=0)] = 1
    pipeline_model_parallel_size: Annotated[int, doc("pipeline parallel ranks; the trainer has 1", above=0)] = 1
    context_parallel_size: Annotated[int, doc("context parallel ranks; the trainer has 1", above=0)] = 1
    sequence_parallel: Annotated[bool, doc("sequence parallelism beside tensor parallelism")] = False
    distributed_timeout_minutes: Annotated[int, doc("process group time-out", above=0)] = 10
    hang_seconds: Annotated[
        float | None,
        doc(
            "without a micro batch, ranks that train count as hanging, and are started again; 0: never; default: 180 "
            "on GPU, never on CPU",
            least=0,
        ),
    ] = None
    global_batch_size: Annotated[int | None, doc("rollouts per optimizer step", above=0)] = None
    num_steps_per_rollout: Annotated[int | None, doc("optimizer steps per rollout step", above=0)] = None
    micro_batch_size: Annotated[int, doc("samples per forward without dynamic batching", above=0)] = 1
    use_dynamic_batch_size: Annotated[bool, doc("pack samples by tokens")] = False
    max_tokens_per_gpu: Annotated[int | None, doc("token limit of one packed micro batch", above=0)] = None
    log_probs_max_tokens_per_gpu: Annotated[
        int | None,
        doc("the same where log-probs are scored without a gradient; default: max-tokens-per-gpu", above=0),
    ] = None
    log_probs_chunk_size: Annotated[
        int | None,
        doc(
            "response tokens that have logits at once, for less memory; -1: all; default: 1,024 on GPU, all on CPU",
            least=-1,
        ),
    ] = None
    recompute_loss_function: Annotated[
        bool, doc("compute log-probs and entropy again in the backward pass: less memory where entropy-coef is not 0")
    ] = False
    balance_data: Annotated[bool, doc("balance tokens over data parallel ranks")] = False
    balance_by_flops: Annotated[
        bool, doc("make micro batches, and balance ranks, by estimated work: attention grows with the square of length")
    ] = False
    tree_packing: Annotated[
        bool,
        doc("compute a prefix that samples of a micro batch share once, where that is less work; for ranks on the CPU"),
    ] = False
    only_train_params_name_list: Annotated[
        list[str], doc("regular expressions: only parameters whose name has one in it are trained (Megatron's names)")
    ] = field(default_factory=list)
    freeze_params_name_list: Annotated[
        list[str], doc("regular expressions: parameters whose name has one in it are not trained")
    ] = field(default_factory=list)
    train_env_vars: Annotated[
        dict[str, str], doc("JSON: environment variables of the trainer's processes, and of no others")
    ] = field(default_factory=dict)
    skip_zero_advantage: Annotated[
        bool, doc("no pass for samples whose advantage is exactly zero where nothing else needs one")
    ] = True
    optimizer: Annotated[Literal["adam", "sgd"], doc("optimizer")] = "adam"
    lr: Annotated[float, doc("learning rate", least=0)] = 1e-6
    critic_load: Annotated[
        str | None,
        doc("what the critic of ppo begins with: HF folder, or trainer checkpoint that has one; default: as the actor"),
    ] = None
    critic_lr: Annotated[float | None, doc("the critic's learning rate; default: lr", least=0)] = None
    critic_lr_warmup_iters: Annotated[int, doc("the critic's linear warm-up, optimizer steps", least=0)] = 0
    critic_num_nodes: Annotated[int | None, doc("the critic shares the actor's ranks: actor-num-nodes", above=0)] = None
    critic_num_gpus_per_node: Annotated[
        int | None, doc("the critic shares the actor's ranks: actor-num-gpus-per-node", above=0)
    ] = None
    min_lr: Annotated[float, doc("floor of the learning rate", least=0)] = 0.0
    lr_decay_style: Annotated[
        Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"], doc("schedule")
    ] = "constant"
    lr_decay_iters: Annotated[int | None, doc("optimizer steps to decay over; default: the whole run", above=0)] = None
    lr_warmup_iters: Annotated[int, doc("linear warm-up, optimizer steps", least=0)] = 0
    lr_warmup_fraction: Annotated[
        float | None, doc("... or as a share of lr-decay-iters, which is the whole run if not said otherwise", least=0)
    ] = None
    weight_decay: Annotated[float, doc("weight decay", least=0)] = 0.0
    adam_beta1: Annotated[float, doc("Adam beta 1")] = 0.9
    adam_beta2: Annotated[float, doc("Adam beta 2")] = 0.98
    adam_eps: Annotated[float, doc("Adam epsilon")] = 1e-8
    reset_optimizer_states: Annotated[
        bool, doc("each rollout step begins with moments of 0 and Adam's count at 0, as if it were the first")
    ] = False
    clip_grad: Annotated[float, doc("gradient norm clip; 0 is off", least=0)] = 1.0
    bf16: Annotated[
        bool | None, doc("train in bfloat16 with float32 main weights; default: on for GPU, off for CPU")
    ] = None
    seed: Annotated[int, doc("Megatron's seed")] = 1234
    deterministic_mode: Annotated[
        bool, doc("deterministic kernels and collectives, Megatron's flag; on the CPU the ranks are so without it")
    ] = False
    exact: Annotated[
        bool, doc("end the run where a step that is trained again after a restart comes out with other bits")
    ] = False
    max_retrained_steps: Annotated[
        int | None,
        doc(
            "steps since its checkpoint that a restarted trainer trains again; behind more it takes the newest weights "
            "and goes on with the checkpoint's optimizer, approximately; -1: any number; default: 8 on GPU, any on CPU",
            least=-1,
        ),
    ] = None
    optimizer_digest: Annotated[
        Literal["every", "checkpoint", "off"] | None,
        doc("steps that the optimizer's state is hashed after; default: checkpoint on GPU, every on CPU"),
    ] = None
    update_weights_interval: Annotated[int, doc("publish weights every N steps", above=0)] = 1
    keep_weights: Annotated[
        int, doc("weight versions kept on disk: the newest N and those with a checkpoint; 0 keeps all", least=0)
    ] = 4
    keep_weights_every: Annotated[
        int | None, doc("beside the newest, keep the weights of every Nth version for ever", above=0)
    ] = None
    custom_megatron_init_path: Annotated[
        str | None, doc("called in each rank once Megatron's groups exist, before the model is built: (args)")
    ] = None
    custom_model_provider_path: Annotated[
        str | None,
        doc("builds each rank's model, with the checkpoint's parameters: (pre_process, post_process, vp_stage=None)"),
    ] = None
    custom_megatron_before_log_prob_hook_path: Annotated[
        str | None, doc("called in each rank before log-probs are scored: (args, model, store_prefix)")
    ] = None
    custom_megatron_before_train_step_hook_path: Annotated[
        str | None,
        doc(
            "called in each rank before each optimizer step: (args, rollout_id, step_id, model, optimizer, "
            "opt_param_scheduler)"
        ),
    ] = None
    custom_update_weight_post_write_path: Annotated[
        str | None,
        doc(
            "called in each rank with the folder of each weight version, before it is published: (args, version_dir, "
            "rollout_engines)"
        ),
    ] = None
    megatron: Annotated[dict[str, Any], doc("other Megatron settings by name")] = field(default_factory=dict)

    @property
    def deterministic(self) -> bool:
        """Whether deterministic mode is on, also as earlier versions recorded it."""
        return self.deterministic_mode or bool(self.megatron.get("deterministic_mode", False))

    def hashes_optimizer(self, version: int) -> bool:
        """Whether the optimizer's digest is computed at a version that a step has made."""
        if self.optimizer_digest == "checkpoint":
            return self.saves.due(version)
        return self.optimizer_digest != "off"

    @property
    def retrains(self) -> int:
        """Steps that a restarted trainer trains again at most; -1: any number, as in earlier versions."""
        most = self.max_retrained_steps
        return -1 if most is None or self.exact else most

    @property
    def saves(self) -> SaveSteps:
        """Of which versions a checkpoint is saved."""
        return SaveSteps(self.save_interval or None, self.save_epoch, self.save_last)

    @property
    def world_size(self) -> int:
        """Megatron ranks."""
        return self.actor_num_nodes * self.actor_num_gpus_per_node

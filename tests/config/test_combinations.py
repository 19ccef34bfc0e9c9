"""Test settings that exclude or imply others, and the messages about both."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.combinations import impossible
from slime_events.core.config.derivations import derive
from slime_events.core.config.paths import missing_paths, require_paths
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.conductor.plan import make_plan
from tests import made

LEAST = "--hf-checkpoint model --num-rollout 2 --rm-type math"


@pytest.mark.parametrize(
    ("line", "both"),
    [
        ("--global-batch-size 100", "16 x 8 = 128|100"),
        ("--global-batch-size 64 --num-steps-per-rollout 3", "64 x 3"),
        ("--num-steps-per-rollout 3", "does not hold"),
        ("--kl-coef 0.1 --kl-loss-coef 0.1 --use-kl-loss", "kl_coef|kl_loss_coef"),
        ("--opd-type megatron", "opd_type|use_opd"),
        ("--opd-teacher-load t", "opd_teacher_load|use_opd"),
        ("--use-opd --opd-type megatron", "opd_type megatron|opd_teacher_load"),
        ("--use-opd", "opd_type sglang|slime.rollout.on_policy_distillation.reward_func"),
        ("--use-opd --opd-type sglang --opd-teacher-load t --custom-rm-path a.b", "opd_type sglang|opd_teacher_load"),
        ("--use-opd --opd-teacher-load t --loss-type sft_loss", "use_opd|sft_loss"),
        ("--use-rollout-logprobs --use-tis", "use_rollout_logprobs|use_tis"),
        ("--supervised --prompt-data p", "supervised|policy_loss"),
        ("--supervised --loss-type sft_loss", "supervised|prompt_data"),
        ("--supervised --loss-type sft_loss --prompt-data p --n-samples-per-prompt 2", "n_samples_per_prompt 2"),
        (
            "--supervised --loss-type sft_loss --prompt-data p --eval-interval 1 --eval-prompt-data a b",
            "supervised|eval_interval",
        ),
        ("--supervised --loss-type sft_loss --prompt-data p --data-source-path a:B", "supervised|data_source_path"),
        ("--agents --partial-rollout", "agents|partial_rollout"),
        ("--agents --agent-credit discounted --agent-turn-discount 1.5", "agent_turn_discount"),
        ("--agents --agent-credit discounted --advantage-estimator ppo", "agent_credit discounted|ppo"),
        (
            "--agents --agent-credit discounted --custom-advantage-function-path a.b",
            "agent_credit discounted|custom_advantage_function_path",
        ),
        ("--agents --agent-command true", "agent_command|gateway"),
        ("--gateway --agent-command true", "agent_command|agents"),
        ("--agents --rollout-function-path a.b", "agents|rollout_function_path"),
        ("--agents --custom-generate-function-path a.b", "agents|custom_generate_function_path"),
        ("--agents --rollout-sample-hook-path a.b", "agents|rollout_sample_hook_path"),
        ("--agents --supervised --loss-type sft_loss --prompt-data p", "agents|supervised"),
        ("--lr-warmup-fraction 0.1 --lr-warmup-iters 2", "lr_warmup_fraction|lr_warmup_iters"),
        ("--lr-warmup-fraction 1", "lr_warmup_fraction is 1"),
        ("--freeze-params-name-list embedding [", "freeze_params_name_list|'['"),
        ("--only-train-params-name-list (", "only_train_params_name_list|'('"),
        ("--save-hf hf/{step} --save-interval 1", "save_hf hf/{step}|{rollout_id}"),
        ("--loss-type custom_loss", "custom_loss|custom_loss_function_path"),
        ("--custom-loss-function-path a:b", "custom_loss_function_path|loss_type custom_loss"),
        ("--disable-compute-advantages-and-returns", "disable_compute_advantages_and_returns|policy_loss"),
        ("--custom-tis-function-path a:b", "custom_tis_function_path|use_tis"),
        ("--loss-type sft_loss --use-tis --use-kl-loss", "sft_loss|use_tis, use_kl_loss"),
        (
            "--loss-type sft_loss --disable-compute-advantages-and-returns --custom-advantage-function-path a:b",
            "custom_advantage_function_path|disable_compute_advantages_and_returns",
        ),
        ("--rollout-temperature 0", "rollout_temperature"),
        ("--nats-replicas 2 --nats-url nats://a:4222", "nats_replicas is 2"),
        ("--nats-replicas 3", "nats_replicas 3|nats_url"),
        ("--rollout-top-p 1.5", "rollout_top_p"),
        ("--over-sampling-batch-size 8", "over_sampling_batch_size 8|rollout_batch_size 16"),
        ("--actor-num-gpus-per-node 4 --tensor-model-parallel-size 3", "4 trainer ranks|3 x 1 x 1"),
        ("--actor-num-gpus-per-node 3", "global_batch_size 128|3 copies"),
        ("--tensor-model-parallel-size 0", "tensor_model_parallel_size is 0"),
        ("--advantage-estimator reinforce_plus_plus", "reinforce_plus_plus|normalize_advantages"),
        ("--advantage-estimator reinforce_plus_plus_baseline", "normalize_advantages"),
        ("--num-epoch 2 --prompt-data x.jsonl", "num_rollout 2|num_epoch 2"),
        ("--eps-clip-c 1", "eps_clip_c"),
        ("--eval-interval 5", "eval_interval 5|eval_prompt_data"),
        ("--eval-interval 5 --eval-prompt-data a x.jsonl b", "eval_prompt_data|'b'"),
        ("--eval-interval 5 --eval-prompt-data a x.jsonl a y.jsonl", "'a' twice"),
        ("--group-rm", "group_rm|custom_rm_path"),
        ("--eval-interval 1 --eval-prompt-data a.b x", "eval_prompt_data|'a.b'"),
        ("--eval-interval 1 --eval-prompt-data train x", "eval_prompt_data|'train'"),
        ("--eval-top-p 1.5", "eval_top_p is 1.5"),
        ("--eval-min-new-tokens 9 --eval-max-response-len 8", "eval_min_new_tokens 9|eval_max_response_len 8"),
        ("--eval-max-context-len 8 --eval-max-prompt-len 8", "eval_max_prompt_len 8|eval_max_context_len 8"),
        ("--max-staleness -1", "max_staleness is -1"),
        ("--max-staleness 0 --update-weights-interval 3", "update_weights_interval 3|max_staleness is 0"),
        ("--run a.b", "run is 'a.b'|NATS"),
        ("--run=", "run is ''"),
        ("--use-dynamic-batch-size", "use_dynamic_batch_size|max_tokens_per_gpu"),
        ("--tree-packing --micro-batch-size 2", "tree_packing|micro_batch_size 2|use_dynamic_batch_size"),
        ("--tree-packing --loss-type custom_loss --custom-loss-function-path a:b", "tree_packing|custom_loss"),
        ("--tree-packing --custom-model-provider-path a:b", "tree_packing|custom_model_provider_path"),
        ("--tree-packing --tinker 127.0.0.1:1", "tree_packing|tinker"),
        ("--tree-packing --moe-aux-loss-coeff 0.1", "moe_aux_loss_coeff|tree_packing"),
        ("--tinker 127.0.0.1:1 --moe-z-loss-coeff 0.1", "moe_z_loss_coeff|tinker"),
        (
            "--tree-packing --context-parallel-size 2 --actor-num-gpus-per-node 2",
            "tree_packing|context_parallel_size",
        ),
        (
            "--rollout-max-context-len 10 --rollout-max-prompt-len 10",
            "rollout_max_prompt_len 10|rollout_max_context_len 10",
        ),
        ("--rollout-num-gpus 3 --rollout-num-gpus-per-engine 2", "rollout_num_gpus 3|rollout_num_gpus_per_engine 2"),
        ("--rollout-external-engine-addrs here", "rollout_external_engine_addrs|here|host:port"),
        ("--rollout-external-engine-addrs a:1 http://a:1/", "rollout_external_engine_addrs|http://a:1|twice"),
        ("--rollout-external-engine-addrs a:1 --colocate", "rollout_external_engine_addrs|colocate"),
        (
            "--rollout-external-engine-addrs a:1 --sglang-mem-fraction-static 0.5",
            "rollout_external_engine_addrs|sglang",
        ),
        ("--rollout-external-engine-addrs a:1 --weights-url s3://b/w", "rollout_external_engine_addrs|weights_url"),
        ("--min-lr 1", "min_lr 1.0|lr 1e-06"),
        ("--use-tis --tis-clip-low 3", "tis_clip_low 3.0|tis_clip 2.0"),
        ("--trace-share 2", "trace_share"),
        ("--rm-workers 0", "rm_workers is 0"),
        ("--rm-type remote_rm", "rm_type remote_rm|rm_url"),
        ("--rm-type outside --eval-interval 2 --eval-prompt-data held p", "rm_type outside|eval_config"),
        ("--source-share quiz=0.9,file=0.2", "source_share|1.1"),
        ("--source-quota quiz=half", "source_quota|quiz=half"),
        ("--rm-url judge:8000", "rm_url judge:8000"),
        ("--archive-share 1.5", "archive_share is 1.5|at most 1"),
        ("--prompt-rest -1", "prompt_rest is -1|at least 0"),
        ("--archive-where X", "archive_where|archive_prompts"),
        ("--buffer-filter-path a:b", "buffer_filter_path|archive_prompts"),
        ("--prompt-sampler curriculum", "prompt_sampler curriculum|prompt_data"),
        (
            "--archive-prompts a/b --archive-min-pass-rate 0.8 --archive-max-pass-rate 0.2",
            "archive_min_pass_rate 0.8|archive_max_pass_rate 0.2",
        ),
        ("--data-source-path a:B --archive-prompts a/b", "data_source_path|archive_prompts"),
        ("--rollout-top-p 0", "rollout_top_p is 0"),
        ("--rollout-top-k 0", "rollout_top_k is 0"),
        ("--global-batch-size 100 --num-steps-per-rollout 1", "100 x 1"),
        ("--adam-beta1 1", "adam_beta1 is 1"),
        ("--adam-beta2 1", "adam_beta2 is 1"),
        ("--gamma 1.5 --advantage-estimator ppo", "gamma is 1.5"),
        ("--use-opsm --opsm-delta -0.1", "opsm_delta is -0.1"),
        ("--weight-decay -1", "weight_decay is -1"),
        ("--micro-batch-size 0", "micro_batch_size is 0"),
        ("--deterministic-mode --tp-comm-overlap", "deterministic_mode|tp_comm_overlap"),
        ("--archive-seconds 0", "archive_seconds is 0"),
        ("--log-keep-steps 5", "log_keep_steps 5|archive_url"),
        ("--log-keep-steps 0 --archive-url a", "log_keep_steps is 0"),
        (
            "--log-keep-steps 5 --archive-url a --load-debug-rollout-data d{rollout_id}",
            "log_keep_steps|debug_train_only",
        ),
        ("--tinker 127.0.0.1:1 --debug-rollout-only", "tinker|debug_rollout_only"),
        ("--tinker 127.0.0.1:1 --optimizer sgd", "tinker|optimizer adam"),
        ("--tinker 127.0.0.1:1 --advantage-estimator ppo", "tinker|ppo"),
        ("--tinker 127.0.0.1:1 --log-keep-steps 5 --archive-url a", "tinker|log_keep_steps"),
        ("--tinker 127.0.0.1:1 --gateway 127.0.0.1:2", "tinker|gateway"),
        ("--keep-weights 0 --keep-weights-every 5", "keep_weights_every|keep_weights"),
        ("--keep-checkpoints-every 5", "keep_checkpoints_every|keep_checkpoints"),
        ("--eval-hold-seconds 0", "eval_hold_seconds is 0"),
        ("--data-source-path a:B --prompt-sampler curriculum --prompt-data p", "data_source_path|prompt_sampler"),
        (f"--run {'x' * 65}", "64"),
        ("--use-tis --prompt-data p --archive-reuse rollouts", "archive_reuse rollouts|archive_prompts"),
        ("--use-tis --archive-prompts a/b --archive-reuse rollouts", "archive_reuse rollouts|prompt_data"),
        ("--prompt-data p --archive-prompts a/b --archive-reuse rollouts", "archive_reuse rollouts|use_tis"),
    ],
)
def test_one_sentence_names_both_sides(line: str, both: str) -> None:
    with pytest.raises(ImpossibleCombination) as caught:
        parse_train(shlex.split(f"{LEAST} {line}"))
    (sentence,) = str(caught.value).splitlines()
    assert sentence.endswith(".")
    for part in both.split("|"):
        assert part in sentence


@pytest.mark.parametrize(
    "line",
    [
        "--rollout-top-p 1",
        "--tree-packing --micro-batch-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 9",
        "--rollout-top-k 1",
        "--over-sampling-batch-size 16",
        "--use-tis --tis-clip 2 --tis-clip-low 2",
        "--eps-clip 0 --eps-clip-high 0 --kl-coef 0",
        "--gamma 0 --lambd 0 --advantage-estimator ppo",
        "--lr 0 --min-lr 0 --weight-decay 0 --clip-grad 0 --lr-warmup-iters 0",
        "--lr 1e-6 --min-lr 1e-6",
        "--adam-beta1 0 --adam-beta2 0",
        "--rollout-max-context-len 10 --rollout-max-prompt-len 9",
        "--eval-interval 1 --eval-prompt-data a x.jsonl --eval-temperature 0",
        "--archive-prompts a/b --archive-min-pass-rate 0.5 --archive-max-pass-rate 0.5 --archive-share 0",
        "--prompt-data p --curriculum-new 0 --prompt-rest 0",
        "--data-source-path a:B",
        "--rollout-num-gpus 4 --rollout-num-gpus-per-engine 2",
        "--update-weights-interval 3 --max-staleness 2",
        f"--run {'x' * 64}",
        "--trace-share 0",
        "--tree-packing --moe-aux-loss-coeff 0",
    ],
)
def test_what_lies_at_the_edge_is_possible(line: str) -> None:
    assert impossible(parse_train(shlex.split(f"{LEAST} {line}")).settings) == []


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("--opd-teacher-load t", "megatron"),
        ("--custom-rm-path a.b", "sglang"),
        ("--opd-type sglang --custom-rm-path a.b", "sglang"),
    ],
)
def test_where_a_teacher_runs_follows_from_where_it_is(line: str, where: str) -> None:
    parsed = parse_train(shlex.split(f"{LEAST} --use-opd --rollout-temperature 0.5 {line}"))
    assert parsed.settings.algorithm.opd_type == where
    assert any("temperature 1" in note for note in parsed.notes) is (where == "sglang")


def test_epochs_are_of_a_file() -> None:
    with pytest.raises(ImpossibleCombination, match="num_epoch 2 needs prompt_data"):
        parse_train(shlex.split("--hf-checkpoint model --rm-type math --num-epoch 2"))


def test_what_every_run_needs() -> None:
    sentences = "\n".join(impossible(derive(TrainSettings())[0]))
    for part in ("Neither num_rollout nor num_epoch", "There is no grader", "hf_checkpoint"):
        assert part in sentences


@pytest.mark.parametrize(
    ("line", "size", "steps"),
    [
        ("", 128, 1),
        ("--global-batch-size 32", 32, 4),
        ("--num-steps-per-rollout 2", 64, 2),
        ("--global-batch-size 64 --num-steps-per-rollout 2", 64, 2),
    ],
)
def test_batch_sizes_follow_from_each_other(line: str, size: int, steps: int) -> None:
    trainer = parse_train(shlex.split(f"{LEAST} {line}")).settings.trainer
    assert (trainer.global_batch_size, trainer.num_steps_per_rollout) == (size, steps)


def test_what_follows_from_what_was_set() -> None:
    parsed = parse_train(
        shlex.split(
            f"{LEAST} --n-samples-per-prompt 1 --rollout-max-context-len 100 --reward-key acc "
            "--eps-clip 0.3 --label-key y --num-steps-per-rollout 2 "
            "--update-weights-interval 3 --rollout-top-k 5 --eval-top-k 1 --lr-decay-style cosine"
        )
    )
    settings = parsed.settings
    assert settings.algorithm.grpo_std_normalization is False
    assert settings.algorithm.eps_clip_high == 0.3
    assert settings.rollout.rollout_max_prompt_len == 99
    assert settings.rollout.max_staleness == 2
    assert settings.reward.eval_reward_key == "acc"
    assert settings.evaluation.eval_label_key == "y"
    assert settings.evaluation.eval_top_k == 1
    assert settings.trainer.lr_decay_iters == 4
    notes = "\n".join(parsed.notes)
    assert "grpo_std_normalization is off" in notes
    assert "max_staleness is 2" in notes
    again, repeated = derive(settings)
    assert again == settings
    assert [note for note in parsed.notes if note in repeated] == list(repeated), (
        "derive() repeats a note that still holds, and no change"
    )
    assert len(repeated) < len(parsed.notes)


@pytest.mark.parametrize(
    ("line", "component", "field", "value"),
    [
        ("--eps-clip 0.2 --eps-clip-high 0.3", "algorithm", "eps_clip_high", 0.3),
        ("--n-samples-per-prompt 2", "algorithm", "grpo_std_normalization", True),
        ("--update-weights-interval 1", "rollout", "max_staleness", 0),
        ("--update-weights-interval 2 --max-staleness 5", "rollout", "max_staleness", 5),
        ("--rollout-max-context-len 100 --rollout-max-prompt-len 7", "rollout", "rollout_max_prompt_len", 7),
        ("--reward-key a --eval-reward-key b", "reward", "eval_reward_key", "b"),
        ("--lr-decay-style cosine --lr-decay-iters 9", "trainer", "lr_decay_iters", 9),
        ("--lr-decay-style constant", "trainer", "lr_decay_iters", None),
        ("", "trainer", "hf_checkpoint", "model"),
        ("", "engine", "hf_checkpoint", "model"),
    ],
)
def test_what_was_given_stays(line: str, component: str, field: str, value: object) -> None:
    settings = parse_train(shlex.split(f"{LEAST} {line}")).settings
    assert getattr(getattr(settings, component), field) == value


def test_engine_and_trainer_may_begin_with_different_folders() -> None:
    def checkpoints(engine: str, trainer: str) -> tuple[str | None, str | None]:
        original = made.settings(engine={"hf_checkpoint": engine}, trainer={"hf_checkpoint": trainer})
        settings, _ = derive(original)
        return settings.engine.hf_checkpoint, settings.trainer.hf_checkpoint

    assert checkpoints("e", "t") == ("e", "t")
    assert checkpoints("", "t") == ("t", "t")
    assert checkpoints("e", "") == ("e", "e")


@pytest.mark.parametrize(("size", "on"), [(1, False), (2, True)])
def test_sequence_parallelism_needs_tensor_parallelism(size: int, on: bool) -> None:
    words = f"--sequence-parallel --actor-num-gpus-per-node 2 --tensor-model-parallel-size {size}"
    parsed = parse_train(shlex.split(f"{LEAST} {words}"))
    assert parsed.settings.trainer.sequence_parallel is on
    assert any(note.startswith("sequence_parallel is off") for note in parsed.notes) is not on


def test_an_evaluation_is_as_training_where_it_was_not_told_otherwise() -> None:
    flags = "--rollout-temperature 0.7 --rollout-top-p 0.8 --rollout-top-k 5 --rollout-max-response-len 9 "
    flags += "--input-key question --label-key answer"
    names = ("temperature", "top_p", "top_k", "max_response_len", "input_key", "label_key")

    def evaluated(line: str) -> tuple[object, ...]:
        evaluation = parse_train(shlex.split(f"{LEAST} {flags} {line}")).settings.evaluation
        return tuple(getattr(evaluation, f"eval_{name}") for name in names)

    assert evaluated("") == (0.7, 0.8, 5, 9, "question", "answer")
    eval_flags = "--eval-temperature 0 --eval-top-p 0.5 --eval-top-k 1 --eval-max-response-len 3 "
    assert evaluated(eval_flags + "--eval-input-key q --eval-label-key a") == (0.0, 0.5, 1, 3, "q", "a")


def test_missing_paths_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = parse_train(
        shlex.split(
            "--hf-checkpoint /m --ref-load /r --use-kl-loss --num-rollout 1 --rm-type math "
            "--prompt-data '/d/p.jsonl@[0:5]' --eval-interval 1 --eval-prompt-data a /e.jsonl b s3://bucket/e.jsonl "
            "--archive-prompts /a/demo"
        )
    ).settings
    with monkeypatch.context() as there:
        there.setattr(Path, "exists", lambda path: True)
        assert missing_paths(settings) == []
        there.setattr(Path, "exists", lambda path: path == Path("/r"))
        absent = missing_paths(settings)
    assert [sentence.split(" does ")[0].split(" has ")[0] for sentence in absent] == [
        "hf_checkpoint /m",
        "ref_load /r",
        "prompt_data /d/p.jsonl",
        "--eval-prompt-data: set 'a': path /e.jsonl",
        "archive_prompts /a/demo",
    ]
    assert "hf download" in absent[0]
    assert "config.json" in absent[1]
    with pytest.raises(InvalidValue, match="hf_checkpoint /m does not exist"):
        require_paths(settings)


@pytest.mark.parametrize(
    ("line", "bound"),
    [
        ("--max-staleness 2", None),
        ("--max-staleness 2 --rollout-batch-size 8 --over-sampling-batch-size 9", 3),
        ("--max-staleness 2 --rollout-batch-size 8 --over-sampling-batch-size 24", 5),
        ("--max-staleness 0 --rollout-batch-size 8 --over-sampling-batch-size 16", 2),
        ("--max-staleness 3 --update-weights-interval 4", 6),
    ],
)
def test_a_bound_that_is_not_what_its_flag_says_is_said(line: str, bound: int | None) -> None:
    """The very bound that the conductor decides by."""
    parsed = parse_train(shlex.split(f"{LEAST} {line}"))
    plan = make_plan(parsed.settings.rollout, parsed.settings.evaluation, parsed.settings.trainer)
    notes = [note for note in parsed.notes if f"up to {plan.staleness_bound} versions behind" in note]
    assert len(notes) == (bound is not None)
    assert plan.staleness_bound == (parsed.settings.rollout.max_staleness if bound is None else bound)


def test_a_supervised_run_of_slime_s_flags_has_no_engines() -> None:
    """Use the flags of slime's script for supervised fine-tuning."""
    line = (
        "--hf-checkpoint model --num-epoch 3 --prompt-data chats.jsonl --input-key messages --rollout-shuffle "
        "--rollout-function-path slime.rollout.sft_rollout.generate_rollout --loss-type sft_loss "
        "--loss-mask-type qwen3 --disable-compute-advantages-and-returns --debug-train-only "
        "--calculate-per-token-loss --rollout-batch-size 128 --global-batch-size 128"
    )
    parsed = parse_train(shlex.split(line))
    settings = parsed.settings
    assert (settings.data.supervised, settings.data.loss_mask_type) == (True, "qwen3")
    assert settings.debug.debug_train_only
    assert settings.rollout.n_samples_per_prompt == 1
    assert settings.trainer.num_steps_per_rollout == 1
    assert any("n_samples_per_prompt is 1" in note for note in parsed.notes)
    assert derive(settings)[0] == settings
    idle = parse_train([*shlex.split(line), "--rm-type", "math"]).notes
    assert any("rm_type: no effect" in note for note in idle)
    again = parse_train(shlex.split(line.replace("--disable-compute-advantages-and-returns ", ""))).settings
    assert not again.algorithm.compute_advantages_and_returns, "nothing looks at them"


def test_settings_of_mis_that_nothing_looks_at_are_said() -> None:
    (note,) = (n for n in parse_train(shlex.split(f"{LEAST} --use-tis --tis-mode clip")).notes if "tis_mode" in n)
    assert "no effect" in note
    named = f"{LEAST} --use-tis --tis-mode clip --custom-tis-function-path a:b"
    assert not [n for n in parse_train(shlex.split(named)).notes if "tis_mode" in n]

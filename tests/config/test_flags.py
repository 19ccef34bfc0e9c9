"""Flags: slime's names, the seeds' command lines, other packages' flags, and what is refused and how."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from schemas.errors import ConfigError, ImpossibleCombination, InvalidValue, UnknownFlag
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config import tables
from slime_events.core.config.fields import settings_fields
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.config.help_text import help_text
from slime_events.core.config.installed import megatron_fields, sglang_fields
from slime_events.core.config.nearest import nearest

LEAST = "--hf-checkpoint model --num-rollout 2 --rm-type math"

# A whole training command of slime's documentation, with the parts it keeps in variables written out.
FULL_EXAMPLE = """
  --actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-num-gpus 8 --rollout-num-gpus-per-engine 2
  --num-layers 36 --hidden-size 2560 --ffn-hidden-size 9728 --swiglu --vocab-size 151936 --disable-bias-linear
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128 --qk-layernorm
  --normalization "RMSNorm" --norm-epsilon 1e-6 --use-rotary-position-embeddings --rotary-base 1000000
  --hf-checkpoint /root/GLM-Z1-9B-0414 --ref-load /root/GLM-Z1-9B-0414_torch_dist
  --load /root/GLM-Z1-9B-0414_slime/ --save /root/GLM-Z1-9B-0414_slime/ --save-interval 20 --ckpt-format torch_dist
  --prompt-data /root/dapo-math-17k/dapo-math-17k.jsonl --input-key prompt --label-key label --apply-chat-template
  --rollout-shuffle --rm-type deepscaler --num-rollout 3000 --rollout-batch-size 16 --n-samples-per-prompt 8
  --num-steps-per-rollout 1 --global-batch-size 128 --rollout-max-response-len 8192 --rollout-temperature 1
  --balance-data --eval-interval 5 --eval-prompt-data aime /root/aime-2024/aime-2024.jsonl
  --n-samples-per-eval-prompt 16 --eval-max-response-len 16384 --eval-top-p 1
  --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 2
  --expert-model-parallel-size 1 --expert-tensor-parallel-size 1
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
  --use-dynamic-batch-size --max-tokens-per-gpu 4608
  --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.00 --kl-loss-type low_var_kl --entropy-coef 0.00
  --eps-clip 0.2 --eps-clip-high 0.28
  --optimizer adam --lr 1e-6 --lr-decay-style constant --lr-warmup-iters 0 --weight-decay 0.1
  --adam-beta1 0.9 --adam-beta2 0.98 --clip-grad 1.0
  --sglang-mem-fraction-static 0.9 --sglang-context-length 32768 --sglang-log-level INFO
  --sglang-enable-dp-attention --sglang-dp-size 2 --sglang-ep-size 4 --sglang-moe-a2a-backend deepep
  --sglang-router-ip 127.0.0.1 --sglang-router-port 8080 --router-balance-abs-threshold 0
"""

GRPO_EXAMPLE = """
    --actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-num-gpus 8 --advantage-estimator grpo
    --use-kl-loss --kl-loss-coef 0.001 --prompt-data /path/to/train.jsonl --input-key prompt --label-key label
    --apply-chat-template --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256
    --num-rollout 3000 --save-interval 100 --eval-interval 50 --hf-checkpoint model --rm-type math
    --eval-prompt-data aime /path/to/aime.jsonl --eval-prompt-data gsm8k /path/to/gsm8k.jsonl
    --n-samples-per-eval-prompt 16 --colocate --num-gpus-per-node 8 --use-fault-tolerance
    --recompute-activations --micro-batch-size 1 --num-data-workers 4 --streaming-data
    --over-sampling-batch-size 64
    --dynamic-sampling-filter-path slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std
    --sglang-server-concurrency 160 --sglang-cuda-graph-bs 1 2 4 8 16
    --async-buffer-size 4 --update-weights-interval 2 --use-tis --calculate-per-token-loss --true-on-policy-mode
"""


def parse(line: str) -> ParsedTrain:
    return parse_train(shlex.split(line))


def test_whole_example_of_slime() -> None:
    parsed = parse(FULL_EXAMPLE)
    settings = parsed.settings
    assert settings.trainer.hf_checkpoint == settings.engine.hf_checkpoint == "/root/GLM-Z1-9B-0414"
    assert settings.rollout.rollout_batch_size == 16
    assert settings.trainer.sequence_parallel is True
    assert settings.algorithm.eps_clip_high == 0.28
    assert settings.evaluation.eval_prompt_data == ["aime", "/root/aime-2024/aime-2024.jsonl"]
    assert settings.evaluation.eval_temperature == 1.0
    assert settings.trainer.megatron["norm_epsilon"] == 1e-6
    assert settings.trainer.megatron["rotary_base"] == 1000000
    assert settings.trainer.megatron["add_bias_linear"] is False
    assert settings.trainer.megatron["recompute_num_layers"] == 1
    assert settings.engine.sglang == {
        "mem_fraction_static": 0.9,
        "context_length": 32768,
        "log_level": "INFO",
        "enable_dp_attention": True,
        "dp_size": 2,
        "ep_size": 4,
        "moe_a2a_backend": "deepep",
    }
    assert any("--router-balance-abs-threshold" in note and "no router" in note for note in parsed.notes)


def test_grpo_example_with_older_flags_and_repeated_lists() -> None:
    parsed = parse(GRPO_EXAMPLE)
    settings, notes = parsed.settings, "\n".join(parsed.notes)
    assert settings.evaluation.eval_prompt_data == ["aime", "/path/to/aime.jsonl", "gsm8k", "/path/to/gsm8k.jsonl"]
    assert settings.rollout.max_staleness == 4
    assert settings.engine.deterministic is True
    assert settings.engine.sglang["cuda_graph_bs_decode"] == [1, 2, 4, 8, 16]
    assert settings.trainer.megatron == {"recompute_granularity": "selective"}
    assert settings.engine.colocate is True
    for flag in (
        "--use-fault-tolerance",
        "--async-buffer-size",
        "--streaming-data",
        "--true-on-policy-mode",
    ):
        assert flag in notes


def test_installed_names_that_the_tables_rely_on() -> None:
    assert tables.SGLANG_OURS.keys() <= {field.name for field in sglang_fields().values()}
    assert len(sglang_fields()) > 300
    assert len(megatron_fields()) > 200


@pytest.mark.parametrize("flag", sorted(tables.NOT_YET))
def test_not_yet_is_refused_by_name(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} is not supported yet: "):
        parse(f"{LEAST} {flag} 1")


@pytest.mark.parametrize(
    ("line", "error", "says"),
    [
        ("--rollot-batch-size 4", UnknownFlag, "--rollout-batch-size"),
        ("--rollout_batch_size 4", UnknownFlag, "--rollout-batch-size"),
        ("--recompute-granularty full", UnknownFlag, "--recompute-granularity"),
        ("--sglang-mem-fraction-statik 0.5", UnknownFlag, "--sglang-mem-fraction-static"),
        ("--sglang-tp-size 2", ConfigError, "--rollout-num-gpus-per-engine"),
        ("--rollout-batch-size four", InvalidValue, "whole number"),
        ("--rollout-batch-size", InvalidValue, "needs a value"),
        ("--rollout-batch-size 4 5", InvalidValue, "one value"),
        ("--rollout-temperature nan", InvalidValue, "a number"),
        ("--use-tis yes", InvalidValue, "takes no value"),
        ("--kl-loss-type k4", InvalidValue, "low_var_kl"),
        ("--apply-chat-template-kwargs [1]", InvalidValue, "JSON object"),
        ("--recompute-granularity half", InvalidValue, "full | selective"),
        ("--params-dtype float32", InvalidValue, "cannot be given on a command line"),
        ("--train-backend fsdp", ConfigError, "Megatron-core"),
        ("--loss-type sftloss", InvalidValue, "loss-type"),
        ("--config a.toml --config b.toml", InvalidValue, "2 times"),
        ("--config /no/such.toml", InvalidValue, "cannot be read"),
    ],
)
def test_refusals_name_the_flag_and_the_way_out(line: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        parse(f"{LEAST} {line}")
    assert says in str(caught.value)
    assert line.split()[0].strip("-").split("=")[0].split("_")[0] in str(caught.value)


def test_a_word_before_any_flag_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"train\.py"):
        parse("train.py --num-rollout 1")


def test_ways_to_write_a_value() -> None:
    settings = parse(
        f"{LEAST} --rollout-top-k -1 --rollout-seed=7 --rollout-stop=--end --rollout-stop-token-ids 1 2 "
        "--apply-chat-template-kwargs '{\"enable_thinking\": false}' --disable-grpo-std-normalization "
        "--no-skip-zero-advantage "
        "--no-deterministic --no-rope-fusion --no-overlap-grad-reduce --num-query-groups 2"
    ).settings
    assert settings.rollout.rollout_top_k == -1
    assert settings.rollout.rollout_seed == 7
    assert settings.rollout.rollout_stop == ["--end"]
    assert settings.rollout.rollout_stop_token_ids == [1, 2]
    assert settings.data.apply_chat_template_kwargs == {"enable_thinking": False}
    assert settings.algorithm.grpo_std_normalization is False
    assert settings.trainer.skip_zero_advantage is False
    assert settings.engine.deterministic is False
    assert settings.trainer.megatron == {
        "apply_rope_fusion": False,
        "overlap_grad_reduce": False,
        "num_query_groups": 2,
    }


def test_the_default_of_a_field_is_what_no_flag_gives() -> None:
    settings = parse(LEAST).settings
    derived = {
        *("eps_clip_high", "global_batch_size", "num_steps_per_rollout", "hf_checkpoint", "num_rollout", "rm_type"),
        *("eval_temperature", "eval_top_p", "eval_top_k", "eval_max_response_len", "eval_input_key", "eval_on"),
        "eval_tool_key",
    }
    for field in settings_fields():
        if field.name not in derived:
            assert getattr(getattr(settings, field.component), field.name) == field.default, field.flag


def test_config_file_under_flags_wherever_they_stand() -> None:
    text = "[rollout]\nnum_rollout = 3\nrollout_batch_size = 4\nrollout_stop = ['a']\n[engine]\nhf_checkpoint = 'm'\n"
    files = {"run.toml": text}
    line = "--rollout-batch-size 8 --config run.toml --rm-type math --rollout-stop b --rollout-stop c"
    settings = parse_train(line.split(), read=files.__getitem__).settings
    assert settings.rollout.num_rollout == 3
    assert settings.rollout.rollout_batch_size == 8
    assert settings.rollout.rollout_stop == ["b", "c"]
    assert settings.trainer.hf_checkpoint == "m"


def test_several_impossible_things_are_said_at_once() -> None:
    with pytest.raises(ImpossibleCombination) as caught:
        parse("--num-rollout 1 --rollout-temperature 0")
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "rollout_temperature" in lines[0]


def test_nearest_ignores_how_words_are_joined() -> None:
    assert nearest("num_rollouts", ["--num-rollout", "--lr"]) == ("--num-rollout",)
    assert nearest("zzz", ["--num-rollout"]) == ()


def test_help_has_every_field() -> None:
    text = help_text()
    for field in settings_fields():
        assert field.usual_flag in text
    assert max(map(len, text.splitlines())) <= 130


def test_nothing_heavy_is_imported() -> None:
    program = (
        "import sys; from slime_events.algorithms.train_arguments import parse_train; "
        "from slime_events.app.cli.commands import doctor; "
        f"parse_train({shlex.split(FULL_EXAMPLE)!r}); "
        "print([m for m in ('torch', 'ray', 'sglang', 'megatron.core', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_slimes_own_data_source_and_buffer_filter_are_what_is_done_anyway() -> None:
    ours = "slime.rollout.data_source"
    for name in ("RolloutDataSourceWithBuffer", "RolloutDataSource"):
        flags = f"--data-source-path {ours}.{name} --buffer-filter-path {ours}.pop_first"
        data = parse(f"{LEAST} {flags}").settings.data
        assert (data.data_source_path, data.buffer_filter_path) == (None, None)
    assert parse(f"{LEAST} --data-source-path mine.py:Mine").settings.data.data_source_path == "mine.py:Mine"

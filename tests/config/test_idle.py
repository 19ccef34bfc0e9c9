"""Test the notes about flags without effect, and the one line of defaults that differ from slime's."""

from __future__ import annotations

import shlex

import pytest

from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.derivations import derive
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.config.idle import crowded, idle_on_cpu
from slime_events.core.config.tables import SLIME_DEFAULTS
from slime_events.core.config.toml import to_toml

DYNAMIC = "--use-dynamic-batch-size --max-tokens-per-gpu 100"
SUPERVISED = "--supervised --prompt-data p --loss-type sft_loss"


def parse(line: str) -> ParsedTrain:
    return parse_train(shlex.split(f"--hf-checkpoint model --num-rollout 2 --rm-type math {line}"))


def other_defaults(parsed: ParsedTrain) -> list[str]:
    return [note for note in parsed.notes if note.startswith("not set, and with different defaults in slime")]


@pytest.mark.parametrize(
    ("name", "line", "with_effect"),
    [
        ("kl_loss_coef", "--kl-loss-coef 0.1", "--use-kl-loss"),
        ("ref_load", "--ref-load other", "--use-kl-loss"),
        (
            "ref_load",
            "--ref-load other",
            "--kl-coef 0.1 --advantage-estimator reinforce_plus_plus --normalize-advantages",
        ),
        ("tis_level", "--tis-level sequence", "--use-tis --custom-tis-function-path f.py:f"),
        ("max_tokens_per_gpu", "--max-tokens-per-gpu 100", DYNAMIC),
        ("log_probs_max_tokens_per_gpu", "--log-probs-max-tokens-per-gpu 9", DYNAMIC),
        ("micro_batch_size", f"--micro-batch-size 2 {DYNAMIC}", "--micro-batch-size 2"),
        ("balance_by_flops", "--balance-by-flops --micro-batch-size 2", "--balance-data"),
        ("save_hf", "--save-hf hf/{rollout_id}", "--save-interval 2"),
        ("load_optim", "--no-load-optim", "--load there"),
        ("mask_offpolicy_in_partial_rollout", "--mask-offpolicy-in-partial-rollout", "--partial-rollout"),
        ("loss_mask_type", "--loss-mask-type qwen3", SUPERVISED),
        ("wandb_project", "--wandb-project p", "--use-wandb"),
        ("tb_project_name", "--tb-project-name p", "--use-tensorboard"),
    ],
)
def test_a_setting_that_nothing_looks_at_is_named(name: str, line: str, with_effect: str) -> None:
    def idle_flags(words: str) -> list[str]:
        return [note for note in parse(words).notes if " no effect" in note and name in note.replace(",", "").split()]

    assert len(idle_flags(line)) == 1
    assert idle_flags(with_effect if with_effect in line else f"{line} {with_effect}") == []


def test_settings_of_one_reason_are_in_one_sentence() -> None:
    notes = parse("--wandb-project p --wandb-mode offline").notes
    assert "wandb_mode, wandb_project have no effect: use_wandb is not set." in notes


@pytest.mark.parametrize(
    "flag",
    [
        *("--seq-length 4096", "--max-position-embeddings 9", "--make-vocab-size-divisible-by 9"),
        "--accumulate-allreduce-grads-in-fp32",
    ],
)
def test_megatrons_settings_that_are_always_so_are_said(flag: str) -> None:
    assert len([note for note in parse(flag).notes if note.startswith(f"{flag.split()[0]}: no effect; ")]) == 1


def test_what_the_cpu_goes_without_is_said() -> None:
    (note,) = idle_on_cpu(parse("--colocate --attention-backend flash --recompute-granularity full").settings)
    assert all(name in note for name in ("attention_backend", "colocate", "recompute_granularity"))
    assert idle_on_cpu(parse("").settings) == []


def test_defaults_that_are_not_slimes_are_one_line_for_who_gives_none() -> None:
    parsed = parse("")
    (note,) = other_defaults(parsed)
    assert all(name in note for _, name in SLIME_DEFAULTS)
    names = [name.replace("_", "-") for _, name in SLIME_DEFAULTS if name != "lr_decay_style"]
    every = " ".join(f"--{name} 0.5" for name in names)
    every = every.replace("size 0.5", "size 4").replace("prompt 0.5", "prompt 4").replace("len 0.5", "len 4")
    assert other_defaults(parse(f"{every} --lr-decay-style constant")) == []
    assert other_defaults(parse_train(["--config", "run.toml"], read=lambda _: to_toml(parsed.settings))) == []
    for line in ("--n-samples-per-prompt 2", SUPERVISED):  # given, or as in slime
        (note,) = other_defaults(parse(line))
        assert "n_samples_per_prompt" not in note


def test_prompt_data_is_left_out_where_the_run_has_its_own() -> None:
    parsed = parse("--prompt-data p.jsonl --disable-rollout-global-dataset")
    assert parsed.settings.data.prompt_data is None
    assert any(note.startswith("prompt_data is not read") for note in parsed.notes)
    assert derive(parsed.settings)[0] == parsed.settings


def test_a_schedule_of_shares_is_over_the_whole_run() -> None:
    for flag in ("--lr-warmup-fraction 0.1", "--weight-decay-incr-style cosine --end-weight-decay 0.1"):
        assert parse(f"{flag} --num-steps-per-rollout 4").settings.trainer.lr_decay_iters == 8
    assert parse("").settings.trainer.lr_decay_iters is None


@pytest.mark.parametrize(("ranks", "cores", "is_crowded"), [(8, 2, True), (2, 2, False), (1, 8, False)])
def test_more_ranks_than_cores_are_said(ranks: int, cores: int, is_crowded: bool) -> None:
    assert bool(crowded(parse(f"--actor-num-gpus-per-node {ranks}").settings, cores)) is is_crowded

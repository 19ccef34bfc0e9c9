"""Launch scripts of slime's users: they parse, or end with the reason that the page of flags gives."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from schemas.errors import ConfigError, ImpossibleCombination, UnknownFlag
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config import tables
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.config.values import layer_pattern
from tests.config.launch_scripts import MAY_BE_REFUSED, STARTS


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "examples" / "train_infer_mismatch_helper"
    folder.mkdir(parents=True)
    (folder / "mis.yaml").write_text("tis_level: token\ntis_mode: truncate\ntis_upper_bound: 2.0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parse(script: str) -> ParsedTrain:
    return parse_train(shlex.split(script))


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", STARTS)
def test_a_launch_script_is_taken(name: str) -> None:
    settings = parse(STARTS[name]).settings
    assert settings.trainer.world_size == 8
    assert settings.trainer.hf_checkpoint.startswith("/root/model")


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", MAY_BE_REFUSED)
def test_a_script_with_more_is_taken_or_says_which_flag_is_not(name: str) -> None:
    """Never with an unknown flag, nor with a combination that slime knows."""
    refusal = None
    try:
        parse(MAY_BE_REFUSED[name])
    except ConfigError as error:
        refusal = error
    reasons = [*tables.NOT_YET.values(), *(reason for _, reason in tables.ONLY_VALUE.values())]
    assert not isinstance(refusal, UnknownFlag | ImpossibleCombination)
    assert refusal is None or any(reason in str(refusal) for reason in reasons)


@pytest.mark.usefixtures("place")
def test_what_variants_come_to() -> None:
    parsed = {name: parse(script) for name, script in STARTS.items()}
    settings = {name: parsed_line.settings for name, parsed_line in parsed.items()}
    assert settings["supervised"].data.supervised
    assert settings["supervised"].rollout.n_samples_per_prompt == 1
    assert settings["supervised"].trainer.lr_warmup_fraction == 0.1
    assert settings["search, several turns"].algorithm.tis_upper_bound == 2.0
    assert settings["a user's own prompts"].data.prompt_data is None
    assert settings["asynchronous"].rollout.max_staleness == 1
    assert settings["reproducible"].trainer.train_env_vars["NCCL_ALGO"] == "Ring"
    assert settings["mixture of experts, in stages"].trainer.megatron["num_layers_in_last_pipeline_stage"] == 13
    assert settings["mixture of experts, in stages"].trainer.load_optim is False
    assert settings["mixture of experts, in stages"].trainer.megatron["moe_layer_freq"] == [0] * 3 + [1] * 58
    assert settings["reproducible"].engine.deterministic is True
    assert settings["mixture of experts"].trainer.megatron["num_moe_experts"] == 128
    assert settings["grpo, colocated"].metrics.wandb_group == "qwen3-4B-test"
    notes = "\n".join(parsed["mixture of experts, in stages"].notes)
    for pattern, layers in (("[0,1]*2", [0, 1, 0, 1]), ("([1]*2)", [1, 1]), ("[1]*x", []), ("2", [])):
        assert layer_pattern(pattern) == layers
    for flag in ("--no-save-optim", "--no-load-rng", "--finetune", "--make-vocab-size-divisible-by"):
        assert flag in notes

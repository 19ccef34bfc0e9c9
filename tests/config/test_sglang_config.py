"""The file of `--sglang-config`: what it means, and what is refused with the model and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import ConfigError, ImpossibleCombination, InvalidValue, UnknownFlag
from slime_events.algorithms.train_arguments import registered
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.flags import parse_settings
from slime_events.core.config.reach import reaching
from slime_events.core.config.sglang_config import read_sglang_config
from slime_events.core.config.toml import read_toml, settings_from, to_toml

COMMAND = [
    "--hf-checkpoint",
    "/m",
    "--prompt-data",
    "p.jsonl",
    "--rm-type",
    "math",
    "--num-rollout",
    "1",
    "--rollout-batch-size",
    "4",
    "--n-samples-per-prompt",
    "2",
    "--rollout-num-gpus-per-engine",
    "2",
]
TWO_MODELS = """
sglang:
  - name: actor
    num_gpus_per_engine: 4
    server_groups:
      - {worker_type: regular, num_gpus: 8, overrides: {context-length: 4096}}
      - {worker_type: regular, num_gpus: 2, num_gpus_per_engine: 1}
      - {worker_type: placeholder, num_gpus: 3}
  - name: judge
    model_path: /judge
    engine_groups:
      - {worker_type: regular, num_gpus: 2}
"""


def parsed(tmp_path: Path, text: str, *words: str) -> EngineSettings:
    file = tmp_path / "models.yaml"
    file.write_text(text)
    return parse_settings([*COMMAND, "--sglang-config", str(file), *words], registered()).settings.engine


def one_group(**keys: object) -> str:
    keys = {"worker_type": "regular", "num_gpus": 2} | keys
    inner = ", ".join(f"{key}: {value}" for key, value in keys.items())
    return f"sglang: [{{name: actor, server_groups: [{{{inner}}}]}}]"


def test_groups_take_from_their_model_and_from_flags(tmp_path: Path) -> None:
    engine = parsed(tmp_path, TWO_MODELS, "--sglang-log-level", "error")
    groups = [(group.name, group.engines, group.each, group.trained) for group in engine.groups]
    assert groups == [
        ("actor-0", 2, 4, True), ("actor-1", 2, 1, True), ("actor-2", 0, 4, True), ("judge-0", 1, 2, False)
    ]  # fmt: skip
    assert (engine.replicas, engine.rollout_gpus) == (4, 10)
    first, judge = engine.of_group(engine.groups[0]), engine.of_group(engine.groups[3])
    assert first.sglang == {"log_level": "error", "context_length": 4096}
    assert (first.hf_checkpoint, first.replicas, first.rollout_num_gpus_per_engine) == ("/m", 2, 4)
    assert (judge.hf_checkpoint, judge.sglang, judge.groups) == ("/judge", {"log_level": "error"}, ())


def test_recorded_models_need_no_file(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(TWO_MODELS)
    settings = parse_settings([*COMMAND, "--sglang-config", str(file)], registered()).settings
    file.unlink()
    text = to_toml(settings)
    assert settings_from(read_toml(text, "x", registered())) == settings
    (tmp_path / "run.toml").write_text(text)
    assert parse_settings(["--config", str(tmp_path / "run.toml")], registered()).settings.engine == settings.engine


def test_a_model_of_an_archive_reaches_beyond_the_run(tmp_path: Path) -> None:
    text = "sglang: [{name: a, server_groups: [{num_gpus: 2, overrides: {trust_remote_code: true}}]}, "
    text += "{name: b, model_path: /b, server_groups: [{num_gpus: 2}]}]"
    file = tmp_path / "models.yaml"
    file.write_text(text)
    settings = parse_settings([*COMMAND, "--sglang-config", str(file)], registered()).settings
    assert {"/b", "--trust_remote_code"} <= set(reaching(settings)["engine.sglang_models"])


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("- 1", InvalidValue, "the key sglang alone"),
        ("sglang: []", InvalidValue, "list of models"),
        ("sglang: [{model_path: /m}]", InvalidValue, "model 1 is not a mapping with a name"),
        ("sglang: [{name: a}, {name: a}]", InvalidValue, "two models have the name 'a'"),
        ("sglang: [{name: a, server_group: []}]", UnknownFlag, "Did you mean server_groups"),
        ("sglang: [{name: a, server_groups: [], engine_groups: []}]", InvalidValue, "both server_groups and"),
        ("sglang: [{name: a, server_groups: 3}]", InvalidValue, "must be a list"),
        (one_group(gpus=1), UnknownFlag, "group 0 has no key gpus"),
        (one_group(worker_type="fast"), InvalidValue, "model 'actor'"),
        (one_group(overrides="{context_lenth: 3}"), UnknownFlag, "Did you mean context_length"),
        (one_group(overrides="{context_length: many}"), InvalidValue, "context_length is 'many'"),
        (one_group(overrides="{tp_size: 2}"), InvalidValue, "use num_gpus_per_engine"),
        (one_group(overrides="{nnodes: 2}"), InvalidValue, "set by the engine itself"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text: str, error: type[ConfigError], words: str) -> None:
    with pytest.raises(error, match=words):
        read_sglang_config(text, "models.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sglang: [{name: a}]", "has no server_groups"),
        ("sglang: [{name: a b, server_groups: [{num_gpus: 2}]}]", "letters, digits"),
        (one_group(num_gpus=3), "does not divide into engines of num_gpus_per_engine 2"),
        (one_group(num_gpus=0), "must be above 0"),
        (one_group(worker_type="placeholder"), "only placeholders"),
        (one_group(worker_type="prefill"), "prefill is not supported yet"),
        (one_group(worker_type="encoder"), "encoder is not supported yet"),
        (one_group(overrides="{model_path: /other}"), "here none does"),
        (
            "sglang: [{name: a, update_weights: true, model_path: /x, server_groups: [{num_gpus: 2}]}]",
            "model_path is hf",
        ),
        ("sglang: [{name: a, server_groups: [{num_gpus: 2}]}, {name: b, server_groups: [{num_gpus: 2}]}]", "a, b"),
        (
            "sglang: [{name: a, server_groups: [{num_gpus: 2}, {num_gpus: 2, overrides: {model_path: /x}}]}]",
            "different model_path",
        ),
    ],
)
def test_models_that_no_run_could_serve_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ImpossibleCombination, match=words):
        parsed(tmp_path, text)


@pytest.mark.parametrize(
    "words", [("--rollout-num-gpus", "9"), ("--colocate",), ("--rollout-external-engine-addrs", "h:1")]
)
def test_flags_that_contradict_the_groups_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert parsed(tmp_path, one_group(), "--rollout-num-gpus", "2").replicas == 1
    with pytest.raises(ImpossibleCombination, match="sglang_config"):
        parsed(tmp_path, one_group(), *words)


def test_each_flag_of_the_router_is_without_effect_or_refused() -> None:
    parsed = parse_settings(
        [*COMMAND, "--router-policy", "manual", "--router-request-id-headers", "a", "b"], registered()
    )
    (note,) = [note for note in parsed.notes if "no router" in note]
    assert "--router-policy, --router-request-id-headers" in note
    for flag, words in {
        "--router-pd-disaggregation": "single engine answers",
        "--router-prefill": "single engine answers",
        "--router-service-discovery": "rollout-external-engine-addrs",
        "--router-backend": "no router passes",
    }.items():
        with pytest.raises(ConfigError, match=words):
            parse_settings([*COMMAND, flag, "x"], registered())
    with pytest.raises(UnknownFlag, match="Did you mean --router-policy"):
        parse_settings([*COMMAND, "--router-polcy", "manual"], registered())

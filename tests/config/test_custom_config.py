"""`--custom-config-path`: names on args, and settings, out of a YAML file."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import InvalidValue
from slime_events.algorithms.mis import Level, MisRule
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.toml import to_toml
from slime_events.plugins.args_view import ArgsView

LEAST = ("--num-rollout", "1", "--rm-type", "exact", "--hf-checkpoint", "base")


def parsed(tmp_path: Path, text: str, *more: str):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    return parse_train(["--custom-config-path", str(file), *LEAST, *more]).settings


def test_keys_are_on_args_and_recorded(tmp_path: Path) -> None:
    settings = parsed(tmp_path, "tool_url: http://t\nsolvers: {solver: [1, 2.5], judge: true}\n")
    assert settings.rollout.custom_config == {"tool_url": "http://t", "solvers": {"solver": [1, 2.5], "judge": True}}
    assert ArgsView.of_run(settings).solvers["solver"] == [1, 2.5]


def test_a_key_that_is_a_setting_sets_it(tmp_path: Path) -> None:
    settings = parsed(tmp_path, "max_turns: 7\nsearch_k: 2\n", "--max-turns", "3")
    assert (settings.rollout.max_turns, settings.rollout.custom_config) == (7, {"search_k": 2})
    assert ArgsView.of_run(settings).max_turns == 7


def test_slime_s_mis_yaml_sets_what_mis_reads(tmp_path: Path) -> None:
    """Its nulls are those of slime: the default."""
    text = (
        "use_tis: true\nuse_rs: true\ntis_level: token\nrs_level: sequence\ntis_mode: truncate\ntis_lower_bound: 0.5\n"
        "tis_upper_bound: 2.0\nrs_lower_bound: null\nrs_upper_bound: null\nrs_veto_threshold: 1.0e-4\n"
        "tis_batch_normalize: true\n"
    )
    function = "examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
    settings = parsed(tmp_path, text, "--custom-tis-function-path", function, "--rs-lower-bound", "0.1")
    assert settings.rollout.custom_config == {}
    assert MisRule.of(ArgsView.of_run(settings)) == MisRule(
        lower=0.5, upper=2.0, reject=True, veto=1e-4, batch_normalize=True, reject_level=Level.SEQUENCE
    )
    with pytest.raises(InvalidValue, match="tis_level is null"):
        parsed(tmp_path, "tis_level: null\n")


@pytest.mark.parametrize("text", ["a: 1\nb: {c: [x]}\n", "max_turns: 2\n", ""])
def test_what_is_recorded_is_read_without_the_file(tmp_path: Path, text: str) -> None:
    settings = parsed(tmp_path, text)
    (tmp_path / "mine.yaml").unlink()
    again = parse_train(["--config", "run.toml"], read=lambda _: to_toml(settings)).settings
    assert again == settings


def test_names_may_be_given_on_the_command_line(tmp_path: Path) -> None:
    settings = parsed(tmp_path, "a: 1\n", "--custom-config", '{"a": 0, "b": 2}')
    assert settings.rollout.custom_config == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "holds list"),
        ("a: [1\n", "is not YAML"),
        ("1: 2\n", "1 cannot be a name"),
        ("a-b: 2\n", "'a-b' cannot be a name"),
        ("a: null\n", "a is null"),
        ("a: {b: [null]}\n", "a is null"),
        ("a: !!binary aGk=\n", "a is bytes"),
        ("a: {1: 2}\n", "has the key 1"),
        ("max_turns: many\n", "max_turns is 'many': it must be"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        parsed(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"--custom-config-path .*cannot be read"):
        parse_train(["--custom-config-path", f"{tmp_path}/none.yaml"])

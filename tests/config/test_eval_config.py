"""`--eval-config`: what its sets resolve to, what of it is recorded, and each mistake in one sentence."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.errors import ConfigError, InvalidValue, UnknownFlag
from slime_events.algorithms.train_arguments import parse_train
from slime_events.app.cli.commands.resume_run import with_flags
from slime_events.core.config.eval_config import read_eval_config
from slime_events.core.config.evaluation import EvalSet
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.config.paths import missing_paths
from slime_events.core.config.toml import settings_from

LEAST = "--hf-checkpoint m --num-rollout 2 --rm-type math --eval-interval 1"
FILE = """
eval:
  defaults:
    max_response_len: 64
    temperature: 1e-6
    metadata_overrides: {lang: en, level: 1}
  datasets:
    - name: aime
      path: aime.jsonl
      rm_type: deepscaler
      n_samples_per_eval_prompt: 16
      stop: "###"
      metadata_overrides: {level: 2, day: 2024-01-01}
    - name: gpqa
      path: gpqa.jsonl
      temperature: 0
      label_key: null
      top_k: null
      custom_rm_path: my.py:reward
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def parse(text: str, line: str = "") -> ParsedTrain:
    Path("sets.yaml").write_text(text)
    return parse_train(shlex.split(f"{LEAST} --eval-config sets.yaml {line}"))


def test_a_set_s_own_goes_before_defaults_and_they_before_flags() -> None:
    evaluation = parse(FILE, "--eval-top-p 0.5 --eval-temperature 0.7 --input-key q --label-key a").settings.evaluation
    assert list(evaluation.eval_sets) == ["aime", "gpqa"]
    aime, gpqa = evaluation.sets().values()
    assert (aime.temperature, aime.top_p, aime.max_response_len, aime.n_samples_per_eval_prompt) == (1e-6, 0.5, 64, 16)
    assert (aime.input_key, aime.label_key, aime.stop, aime.stop_token_ids) == ("q", "a", ["###"], None)
    assert (gpqa.temperature, gpqa.top_k, gpqa.label_key, gpqa.n_samples_per_eval_prompt) == (0, -1, "", 1)
    assert aime.metadata({"own": 1, "level": 0}) == {
        "own": 1, "level": 2, "lang": "en", "day": "2024-01-01", "rm_type": "deepscaler",
    }  # fmt: skip
    assert gpqa.metadata({"rm_type": "f1"}) == {"rm_type": "f1", "lang": "en", "level": 1}
    assert gpqa.custom_rm_path == "my.py:reward"


@pytest.mark.parametrize(
    "text",
    [
        "datasets: [{name: a, path: x}]",
        "eval: {datasets: {a: {path: x}}}",
        "datasets: {other: {name: a, path: x}}",
        "datasets: [&one {name: a, path: x}]",
        '{"eval": {"defaults": null, "datasets": [{"name": "a", "path": "x"}]}}',
    ],
)
def test_ways_to_write_a_set(text: str) -> None:
    assert parse(text).settings.evaluation.eval_sets == {"a": EvalSet(path="x")}


def test_what_is_recorded_needs_no_file() -> None:
    settings = parse(FILE).settings
    Path("sets.yaml").unlink()
    assert settings_from(msgspec.to_builtins(settings)).evaluation == settings.evaluation
    again = with_flags(settings, ["--lr", "1e-4"]).settings
    assert again.evaluation == settings.evaluation
    Path("other.yaml").write_text("datasets: {b: {path: y}}")
    other = with_flags(settings, ["--eval-config", "other.yaml"]).settings
    assert list(other.evaluation.eval_sets) == ["b"], "a flag goes first"


def test_a_secret_in_a_path_is_recorded_by_its_name() -> None:
    text = "datasets: [{name: a, path: 'https://me:hunter22@host/a.jsonl'}]"
    (eval_set,) = parse(text).settings.evaluation.eval_sets.values()
    assert "hunter22" not in eval_set.path
    assert "${SLIME_EVENTS_" in eval_set.path


def test_pairs_beside_a_file_are_said_to_have_no_effect() -> None:
    parsed = parse(FILE, "--eval-prompt-data a x.jsonl")
    assert list(parsed.settings.evaluation.sets()) == ["aime", "gpqa"]
    assert any("eval_prompt_data has no effect" in note for note in parsed.notes)


def test_a_grader_that_a_set_names_for_nothing_is_said() -> None:
    notes = parse(FILE, "--custom-rm-path mine.py:f").notes
    assert [note for note in notes if "aime" in note and "deepscaler" in note]
    assert not [note for note in notes if "gpqa" in note]


WRONG: list[tuple[str, type[ConfigError], str]] = [
    ("datasets: [{name: a, path: x, temprature: 1}]", UnknownFlag, "'a'|temprature|temperature"),
    ("datasets: [{name: a, path: x, zzz: 1}]", UnknownFlag, "'a'|zzz|max_response_len"),
    ("defaults: {temprature: 1}\ndatasets: [{name: a, path: x}]", UnknownFlag, "defaults|temprature"),
    ("defaults: {path: y}\ndatasets: [{name: a, path: x}]", InvalidValue, "defaults|path"),
    ("dataset: [{name: a, path: x}]", UnknownFlag, "dataset |datasets"),
    ("eval: {datasets: [{name: a, path: x}]}\nmore: 1", InvalidValue, "eval"),
    ("datasets: [{name: a}]", InvalidValue, "'a'|path"),
    ("datasets: [{name: a, path: ''}]", InvalidValue, "'a'|path"),
    ("datasets: [{name: a, path: 7}]", InvalidValue, "'a'|path is 7"),
    ("datasets: [{path: x}]", InvalidValue, "set 1|name"),
    ("datasets: [{name: 7, path: x}]", InvalidValue, "set 1|name"),
    ("datasets: [a]", InvalidValue, "set 1"),
    ("datasets: {a: 7}", InvalidValue, "set 1"),
    ("datasets: []", InvalidValue, "datasets"),
    ("eval: null", InvalidValue, "datasets"),
    ("", InvalidValue, "datasets"),
    ("[1, 2]", InvalidValue, "mapping"),
    ("datasets: [{name: a.b, path: x}]", InvalidValue, "'a.b'"),
    ("datasets: [{name: train, path: x}]", InvalidValue, "'train'"),
    ("datasets: [{name: a, path: x}, {name: a, path: y}]", InvalidValue, "two sets|'a'"),
    ("datasets:\n  a: {path: x}\n  a: {path: y}", InvalidValue, "line 3|'a'|twice"),
    ("datasets: [{name: a, path: x, temperature: hot}]", InvalidValue, "'a'|temperature is 'hot'|a number"),
    ("datasets: [{name: a, path: x, temperature: '1'}]", InvalidValue, "'a'|temperature is '1'|a number"),
    ("datasets: [{name: a, path: x, temperature: .nan}]", InvalidValue, "'a'|temperature is nan"),
    ("datasets: [{name: a, path: x, temperature: -1}]", InvalidValue, "'a'|temperature is -1"),
    ("datasets: [{name: a, path: x, top_p: 2}]", InvalidValue, "'a'|top_p is 2"),
    ("datasets: [{name: a, path: x, top_k: 0}]", InvalidValue, "'a'|top_k is 0"),
    ("datasets: [{name: a, path: x, max_response_len: 0}]", InvalidValue, "'a'|max_response_len is 0"),
    ("datasets: [{name: a, path: x, min_new_tokens: -1}]", InvalidValue, "'a'|min_new_tokens is -1"),
    ("datasets: [{name: a, path: x, n_samples_per_eval_prompt: 1.5}]", InvalidValue, "'a'|n_samples_per_eval_prompt"),
    ("datasets: [{name: a, path: x, n_samples_per_eval_prompt: true}]", InvalidValue, "'a'|n_samples_per_eval_prompt"),
    ("datasets: [{name: a, path: x, stop: [1]}]", InvalidValue, "'a'|stop"),
    ("datasets: [{name: a, path: x, metadata_overrides: [1]}]", InvalidValue, "'a'|metadata_overrides"),
    ("datasets: [{name: a, path: x", InvalidValue, "line 1"),
    ("datasets: !!python/object/apply:os.getcwd []", InvalidValue, "line 1"),
    ("datasets: \x00", InvalidValue, "YAML"),
]


@pytest.mark.parametrize(("text", "error", "says"), WRONG)
def test_a_mistake_is_one_sentence_with_file_set_and_key(text: str, error: type[ConfigError], says: str) -> None:
    with pytest.raises(error) as caught:
        parse(text)
    (sentence,) = str(caught.value).splitlines()
    assert sentence.startswith("--eval-config sets.yaml")
    assert all(part in sentence for part in says.split("|")), sentence


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('--eval-sets \'{"a": {"path": "x", "zzz": 1}}\'', "eval_sets: set 'a'|zzz"),
        ("--eval-sets '{\"a\": 1}'", "eval_sets: set 'a'"),
        ('--eval-sets \'{"a": {"path": "x"}}\' --eval-config y.yaml', "--eval-config y.yaml|--eval-sets"),
        ("--eval-config /nowhere/y.yaml", "--eval-config /nowhere/y.yaml"),
    ],
)
def test_other_ways_to_give_sets(line: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_train(shlex.split(f"{LEAST} {line}"))
    assert all(part in str(caught.value) for part in says.split("|"))


def test_an_answer_cannot_be_longer_than_it_may_be() -> None:
    with pytest.raises(ConfigError, match=r"sets.yaml: set 'a': min_new_tokens 9 is above max_response_len 8"):
        parse("datasets: [{name: a, path: x, min_new_tokens: 9}]", "--eval-max-response-len 8")


def test_a_file_that_is_not_there_is_said_with_its_set(tmp_path: Path) -> None:
    settings = parse(f"datasets: [{{name: a, path: {tmp_path}/no.jsonl}}]").settings
    (sentence,) = [problem for problem in missing_paths(settings) if "no.jsonl" in problem]
    assert sentence.startswith("--eval-config sets.yaml: set 'a': path ")


def test_every_key_of_a_set_can_be_a_default() -> None:
    values: dict[str, Any] = {
        "n_samples_per_eval_prompt": 3, "temperature": 0.5, "top_p": 0.5, "top_k": 5, "max_response_len": 7,
        "min_new_tokens": 1, "stop": ["a"], "stop_token_ids": [1], "input_key": "i", "label_key": "l",
        "tool_key": "t", "metadata_key": "m", "metadata_overrides": {"x": 1}, "rm_type": "f1",
        "custom_rm_path": "a:b", "custom_generate_function_path": "c:d",
    }  # fmt: skip
    assert {"path", *values} == set(EvalSet.__struct_fields__)
    text = msgspec.json.encode({"defaults": values, "datasets": {"a": {"path": "x"}}}).decode()
    assert read_eval_config(text, "it") == {"a": values | {"path": "x"}}

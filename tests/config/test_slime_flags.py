"""slime's flags: each has one standing, which is what happens when it is given; and no setting is read by nobody."""

from __future__ import annotations

import ast
import shlex
from collections import Counter
from pathlib import Path

import pytest

from schemas.errors import ImpossibleCombination
from slime_events.algorithms.train_arguments import parse_train
from slime_events.app.cli.main import main
from slime_events.core.config import tables
from slime_events.core.config.fields import honoured, settings_fields
from slime_events.core.config.flags import FILES, OLDER_FLAGS, ParsedTrain
from slime_events.core.config.installed import parsed
from slime_events.core.config.values import Kind
from tools.flags_page import Status, document, slime_flags, support_of

ROOT = Path(__file__).parents[2]
LEAST = "--hf-checkpoint model --num-rollout 6 --rm-type math --rollout-batch-size 4 --n-samples-per-prompt 4"
FLAGS = [flag.flag for flag in slime_flags()]
BY_STATUS = {status: [flag for flag in FLAGS if support_of(flag).status is status] for status in Status}

VALUES = {
    "--num-rollout": "3",
    "--custom-config-path": "{folder}/more.yaml",
    "--eval-config": "{folder}/sets.yaml",
    "--eval-prompt-data": "aime aime.jsonl",
    "--sglang-config": "{folder}/models.yaml",
    "--megatron-config-path": "{folder}/roles.yaml",
    "--mtp-num-layers": "1",
    "--padded-vocab-size": "64",
    "--rm-type": "dapo",
    "--rm-url": "http://127.0.0.1:1",
    "--hf-checkpoint": "other",
    "--global-batch-size": "8",
    "--num-steps-per-rollout": "2",
    "--advantage-estimator": "gspo",
    "--load-debug-rollout-data-subsample": "0.5",
    "--eps-clip-c": "3.0",
    "--rollout-top-p": "0.5",
    "--eval-top-p": "0.5",
    "--gamma": "0.5",
    "--lambd": "0.5",
    "--tis-clip-low": "0.5",
    "--lr": "0.5",
    "--opd-type": "megatron",
    "--over-sampling-batch-size": "8",
    "--rollout-max-prompt-len": "9",
    "--rollout-max-context-len": "9",
    "--eval-max-context-len": "9",
    "--rollout-top-k": "9",
    "--loss-type": "custom_loss",
    "--save-debug-rollout-data": "d/{{rollout_id}}.pt",
    "--save-debug-train-data": "d/{{rollout_id}}.pt",
    "--load-debug-rollout-data": "d/{{rollout_id}}.pt",
}
"""A value for flags whose field does not say one that can stand alone."""
BESIDE = {
    "--num-epoch": "--prompt-data p.jsonl",
    "--group-rm": "--custom-rm-path r.py:f",
    "--eval-interval": "--eval-prompt-data aime aime.jsonl",
    "--skip-eval-before-train": "--eval-interval 2 --eval-prompt-data aime aime.jsonl",
    "--disable-rollout-global-dataset": "--prompt-data p.jsonl",
    "--buffer-filter-path": "--archive-prompts somewhere",
    "--use-dynamic-batch-size": "--max-tokens-per-gpu 100",
    "--custom-loss-function-path": "--loss-type custom_loss",
    "--loss-type": "--custom-loss-function-path x.py:f",
    "--custom-tis-function-path": "--use-tis",
    "--disable-compute-advantages-and-returns": "--loss-type sft_loss",
    "--update-weights-interval": "--max-staleness 1",
    "--load-debug-rollout-data-subsample": "--load-debug-rollout-data d/{rollout_id}.pt",
    "--debug-train-only": "--load-debug-rollout-data d/{rollout_id}.pt",
    "--actor-num-nodes": "--global-batch-size 16",
    "--use-opd": "--opd-teacher-load teacher",
    "--opd-type": "--use-opd --opd-teacher-load teacher",
    "--opd-teacher-load": "--use-opd",
}
"""What a flag cannot be given without."""
REPLACES = {"--num-epoch": "--num-rollout 6"}
"""Words of the least command line that exclude it."""

READ_INSIDE = {
    "archive_reuse": "`DataSettings.reuses_rollouts` says it",
    "custom_config_path": "its contents are custom_config",
    "dump_details": "`derive` makes two paths of it",
    "eval_config": "its contents are eval_sets",
    "sglang_config": "its contents are sglang_models",
    "sglang_models": "`EngineSettings.groups` says it",
    "eval_function_path": "`EvalSettings.own_function` says it",
    **dict.fromkeys(
        (
            *("update_weight_mode", "update_weight_full_every"),
            *("update_weight_delta_encoding", "update_weight_delta_checksum"),
        ),
        "`DeltaSettings.delta_rule` says it",
    ),
    "max_turns": "user's generate functions find it on args",
    "actor_num_nodes": "`TrainerSettings.world_size` says it",
    "rollout_num_gpus": "`EngineSettings.replicas` says it",
    **dict.fromkeys(("offload", "offload_train", "offload_rollout"), "`EngineSettings.takes_turns` says it"),
    "chunk_tokens": "`EngineSettings.chunk` says it",
    "chunk_seconds": "`EngineSettings.chunk_s` says it",
    "critic_num_nodes": "its rule compares it with actor_num_nodes",
    "critic_num_gpus_per_node": "its rule compares it with actor_num_gpus_per_node",
    **dict.fromkeys(
        (
            *("eval_sets", "eval_input_key", "eval_label_key", "eval_tool_key", "eval_temperature", "eval_top_p"),
            *("eval_top_k", "eval_max_response_len"),
        ),
        "`EvalSettings` makes the settings of each data set of them",
    ),
}
"""Settings that nothing outside of the configuration reads, and who does."""


def parse(*words: str) -> ParsedTrain:
    return parse_train(list(words))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "more.yaml").write_text("judge: here\n")
    (tmp_path / "sets.yaml").write_text("eval: {datasets: [{name: aime, path: aime.jsonl}]}\n")
    (tmp_path / "models.yaml").write_text("sglang: [{name: actor, server_groups: [{num_gpus: 2}]}]\n")
    (tmp_path / "roles.yaml").write_text("megatron: [{name: default, role: actor, overrides: {lr: 1e-4}}]\n")
    return tmp_path


def sample(flag: str, folder: Path) -> list[str]:
    """Words for the flag that say something else than its default."""
    if flag in VALUES:
        return VALUES[flag].format(folder=folder).split()
    settings_of_flag = honoured().get(flag)
    if settings_of_flag is None or settings_of_flag[0].type.switch:
        return []
    (setting, *_) = settings_of_flag
    if setting.type.choices:
        return [str(next(choice for choice in setting.type.choices if choice != setting.default))]
    kind = setting.type.kinds[0]
    if kind is Kind.INT:
        return [str((setting.default or 0) + 1)]
    return {Kind.FLOAT: ["1.5"], Kind.JSON: ['{"a": "b"}'], Kind.STR: ["x.py:f"]}[kind]


def test_every_flag_of_slime_has_one_standing() -> None:
    places = [set(honoured()), set(tables.INERT), set(tables.ONLY_VALUE), set(tables.NOT_YET)]
    places += [set(OLDER_FLAGS), set(FILES), set(tables.CLASSIC)]
    assert [flag for flag in FLAGS if sum(flag in place for place in places) != 1] == []
    assert not any(names & other for place, names in enumerate(places) for other in places[:place])
    assert len(set(FLAGS)) == len(FLAGS) == 229


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "flags.md").read_text(encoding="utf-8")
    assert page == document(), "python -m tools.flags_page docs/flags.md"
    assert all(f"| `{flag}` |" in page for flag in FLAGS)


def parsed_or_refused(flag: str, *words: str) -> ParsedTrain | None:
    """None where the flag needs others that `BESIDE` does not know yet: the sentence that says so names it."""
    refusal = ""
    try:
        return parse(*words)
    except ImpossibleCombination as error:
        refusal = str(error)
    assert flag.removeprefix("--").replace("-", "_") in refusal
    return None


@pytest.mark.parametrize("flag", [*BY_STATUS[Status.WORKS], *BY_STATUS[Status.NEEDS_GPU]])
def test_a_flag_that_works_changes_the_settings(flag: str, folder: Path) -> None:
    least = LEAST.replace(REPLACES.get(flag, "nothing"), "") + " " + BESIDE.get(flag, "")
    after = parsed_or_refused(flag, *shlex.split(least), flag, *sample(flag, folder))
    if after is None:
        return
    before = parse(*LEAST.split()).settings
    assert not any(note.startswith(f"{flag}: no effect") for note in after.notes)
    if flag not in honoured():
        assert after.settings != before
    for setting in honoured().get(flag, ()):
        values = [getattr(getattr(settings, setting.component), setting.name) for settings in (before, after.settings)]
        assert values[0] != values[1]


@pytest.mark.parametrize("flag", BY_STATUS[Status.NO_EFFECT])
def test_a_flag_without_effect_says_so(flag: str) -> None:
    arity, reason = tables.INERT[flag]
    parsed = parse(*LEAST.split(), flag, *(["1"] if arity == "one" else []))
    assert parsed.settings == parse(*LEAST.split()).settings
    assert any(flag in note and reason in note for note in parsed.notes)


@pytest.mark.parametrize("flag", BY_STATUS[Status.ONE_VALUE])
def test_a_flag_with_one_value_takes_that_one(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    value, reason = tables.ONLY_VALUE[flag]
    assert parse(*LEAST.split(), flag, value).settings == parse(*LEAST.split()).settings
    assert main(["train", *LEAST.split(), flag, "another"]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("flag", BY_STATUS[Status.REFUSED])
def test_a_refused_flag_ends_the_command_with_its_reason(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *LEAST.split(), flag, "1"]) == 2
    output = capsys.readouterr().err
    assert flag in output
    assert tables.NOT_YET[flag] in output


def read_names() -> Counter[str]:
    """Names that product code outside of the configuration reads: attributes, and texts that may name one."""
    names: Counter[str] = Counter()
    for package in ("schemas", "storage", "slime_events", "actors", "serve_apps"):
        for path in (ROOT / package).rglob("*.py"):
            if ROOT / "slime_events" / "core" / "config" in path.parents:
                continue
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    names[node.attr] += 1
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                    names[node.value] += 1
    return names


def test_every_setting_is_read_by_somebody() -> None:
    """Look for a reader of each setting by name; a name with two meanings hides a missing reader."""
    names = read_names()
    unread = {setting_field.name for setting_field in settings_fields() if not names[setting_field.name]}
    assert unread - READ_INSIDE.keys() == set()

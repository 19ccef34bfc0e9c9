"""`slime-events`: dispatch, exit codes, what is printed where."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.errors import ConfigError, DataError, DeadlineExceeded, TrainerError
from slime_events.app.cli.arguments import COMMANDS
from slime_events.app.cli.commands import show
from slime_events.app.cli.commands.demo import check_arguments, make_room, prepare
from slime_events.app.cli.commands.train import resolve_epochs
from slime_events.app.cli.main import main
from slime_events.app.launch.slime_folders import as_in_slime
from slime_events.core.config.data import DataSettings
from slime_events.core.run.run_folder import RunFolder
from storage import open_log
from storage.open_log import keeping_server
from tests import made
from tests.cli.invoke import arguments, command

HEAVY = ("torch", "ray", "sglang", "transformers", "megatron", "nats", "numpy")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in COMMANDS)


def test_an_unknown_command_gets_the_nearest_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shwo", "demo"]) == 2
    assert "show" in capsys.readouterr().err


def test_an_unknown_run_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "settings.toml").write_text("")
    for name in ("show", "audit", "replay", "retrain"):
        assert main([name, "other", "--runs-dir", str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith("error: no run 'other'")
    assert main(["show", "other", "--runs-dir", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: no run 'other'")
    assert "demo" in err
    assert err.count("\n") == 1


def test_a_wrong_flag_is_exit_2_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--rollout-batchsize", "4"]) == 2
    assert "--rollout-batch-size" in capsys.readouterr().err


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(show, "run", interrupted)
    assert main(["show", "demo"]) == 130


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from slime_events.app.cli.main import main; main(['--help']); main(['--version']); "
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    before = _seconds_of_children()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "[]"
    assert _seconds_of_children() - before < 3, "0.1 s alone; the rest is for a busy machine"


def _seconds_of_children() -> float:
    """Return the processor time of ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_epochs_become_steps_by_slimes_rule(tmp_path: Path) -> None:
    data = tmp_path / "p.jsonl"
    data.write_text('{"input": "a"}\n' * 10)
    settings = made.settings(
        data={"prompt_data": str(data), "apply_chat_template": True}, rollout={"num_epoch": 3, "rollout_batch_size": 4}
    )
    resolved, note = resolve_epochs(settings)
    assert (resolved.rollout.num_rollout, resolved.rollout.num_epoch) == (7, None)
    assert note is not None
    assert resolve_epochs(resolved) == (resolved, None)


def test_epochs_over_no_file_say_which(tmp_path: Path) -> None:
    data = DataSettings(prompt_data=str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match=r"none\.jsonl"):
        resolve_epochs(made.settings(data=data, rollout={"num_epoch": 1}))


def test_the_demo_takes_any_flag_of_train(tmp_path: Path) -> None:
    flags = ["--runs-dir", str(tmp_path), "--steps", "3", "--rollout-batch-size", "4", "--max-staleness=1"]
    settings = prepare(arguments("demo", *flags)).settings
    assert settings.rollout.num_rollout == 3
    assert settings.rollout.max_staleness == 1
    assert settings.trainer.global_batch_size == 4 * settings.rollout.n_samples_per_prompt
    assert Path(settings.data.prompt_data or "").is_file()
    assert Path(settings.data.prompt_data or "").is_relative_to(tmp_path / "demo")


def test_the_demo_has_two_models() -> None:
    with pytest.raises(ConfigError, match="smollm2-135m"):
        check_arguments(arguments("demo", "--model", "smollm"))


def _demo(runs: Path, name: str) -> RunFolder:
    folder = RunFolder.create(runs, name)
    folder.settings.write_text(f'[data]\nprompt_data = "{folder.path}/data/train.jsonl"\n')
    return folder


def test_an_earlier_demo_makes_room_only_where_it_may(tmp_path: Path) -> None:
    folder = _demo(tmp_path, "demo")
    make_room(folder, force=False)
    assert not folder.path.exists()
    own = _demo(tmp_path, "mine")
    with pytest.raises(ConfigError, match="--force"):
        make_room(own, force=False)
    make_room(own, force=True)
    assert not own.path.exists()


def test_an_earlier_demo_is_not_removed_under_its_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one come while it is removed."""
    folder, rmtree, removed = _demo(tmp_path, "demo"), shutil.rmtree, []
    with keeping_server(folder.path), pytest.raises(ConfigError, match="being read"):
        make_room(folder, force=True)
    assert folder.settings.exists()

    def remove(path: Path) -> None:
        with pytest.raises(DeadlineExceeded), keeping_server(folder.path):
            pass
        removed.append(path)
        rmtree(path)

    monkeypatch.setattr(open_log, "LAUNCH_S", 0.01)
    monkeypatch.setattr(shutil, "rmtree", remove)
    make_room(folder, force=False)
    assert removed == [folder.path]
    assert not folder.path.exists()


@pytest.mark.parametrize("flags", [["--custom-rm-path", "nowhere.py"], ["--prompt-data", "nowhere.jsonl"]])
def test_an_earlier_demo_stays_where_the_new_one_cannot_start(tmp_path: Path, flags: list[str]) -> None:
    folder = _demo(tmp_path, "mine")
    before = sorted(folder.path.rglob("*"))
    with pytest.raises(ConfigError, match="nowhere"):
        prepare(arguments("demo", "--force", "--run", "mine", "--runs-dir", str(tmp_path), *flags))
    assert sorted(folder.path.rglob("*")) == before
    with pytest.raises(ConfigError, match="nowhere"):
        prepare(arguments("demo", "--runs-dir", str(tmp_path), *flags))
    assert not (tmp_path / "demo").exists()


def test_a_demo_begins_with_the_model_if_load_and_save_are_one_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    flags = ("--load", str(tmp_path / "saved"), "--save", str(tmp_path / "saved"))
    parsed = prepare(arguments("demo", "--runs-dir", str(tmp_path), *flags))
    settings, notes = as_in_slime(parsed.settings)
    assert settings.trainer.load is None
    assert len(notes) == 1
    with pytest.raises(ConfigError):
        prepare(arguments("demo", "--force", "--runs-dir", str(tmp_path), "--load", str(tmp_path / "saved")))


def test_a_demo_that_came_to_nothing_leaves_no_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        assert (tmp_path / "demo" / "data" / "train.jsonl").is_file()
        raise TrainerError("no device")

    monkeypatch.setattr("slime_events.app.cli.commands.demo.run_to_end", fail)
    with pytest.raises(TrainerError):
        command("demo")(["--runs-dir", str(tmp_path)])
    assert not (tmp_path / "demo").exists()


def test_a_run_that_is_no_demo_is_never_removed(tmp_path: Path) -> None:
    folder = _demo(tmp_path, "demo")
    folder.settings.write_text('[data]\nprompt_data = "/elsewhere/train.jsonl"\n')
    with pytest.raises(ConfigError):
        make_room(folder, force=True)
    assert folder.path.exists()

"""Secrets in flags and TOML: recorded by reference, equal to what was given, and hidden from `ps`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from slime_events.algorithms.train_arguments import parse_train
from slime_events.app.launch.run_record import changes
from slime_events.core.config.secrets import kept_words, secrets_of
from slime_events.core.config.toml import settings_from, to_toml
from slime_events.plugins.args_view import ArgsView

NATS, NATS_REF = "nats://me:planted@h:4222", "nats://me:${SLIME_EVENTS_NATS_URL_PASSWORD}@h:4222"
FLAGS = ("--num-rollout", "1", "--rm-type", "math", "--hf-checkpoint", "m")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment afterwards: parsing puts secrets into it."""
    for name in ("NATS_URL_PASSWORD", "SGLANG_API_KEY", "RM_URL_PASSWORD"):
        monkeypatch.setenv(f"SLIME_EVENTS_{name}", "another")


def test_flags_and_toml_hold_references(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('[reward]\nrm_url = "http://j:planted-2@judge/x"\n[engine.sglang]\napi_key = "planted-3"\n')
    words = (*FLAGS, "--config", str(config), "--nats-url", NATS)
    settings = parse_train(words).settings
    assert settings.run.nats_url == NATS_REF
    assert settings.reward.rm_url == "http://j:${SLIME_EVENTS_RM_URL_PASSWORD}@judge/x"
    assert settings.engine.sglang == {"api_key": "${SLIME_EVENTS_SGLANG_API_KEY}"}
    assert "planted" not in to_toml(settings) + repr(settings)
    assert secrets_of(settings) == {
        "SLIME_EVENTS_NATS_URL_PASSWORD": "planted",
        "SLIME_EVENTS_RM_URL_PASSWORD": "planted-2",
        "SLIME_EVENTS_SGLANG_API_KEY": "planted-3",
    }
    assert ArgsView.of(settings.reward).rm_url == "http://j:planted-2@judge/x"


def test_a_record_that_has_the_secret_is_no_other_run() -> None:
    """Older versions recorded settings as they were given."""
    settings = parse_train((*FLAGS, "--nats-url", NATS, "--archive-url", "ftp://a:planted@h/x")).settings
    plain = msgspec.to_builtins(settings)
    plain["run"] |= {"nats_url": NATS, "archive_url": "ftp://a:planted@h/x"}
    assert changes(settings_from(plain), settings) == {}


def test_the_words_of_any_command() -> None:
    words = ["restore", "ftp://a:planted-1@h/x", "--nats-url", NATS, "--sglang-api-key=planted-2", "select 'a://b:c@d'"]
    concealed, secrets = kept_words(words)
    assert concealed == [
        *("restore", "ftp://a:${SLIME_EVENTS_URL_PASSWORD}@h/x", "--nats-url", NATS_REF),
        *("--sglang-api-key=${SLIME_EVENTS_SGLANG_API_KEY}", "select 'a://b:c@d'"),
    ]
    assert sorted(secrets.values()) == ["planted", "planted-1", "planted-2"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere arguments stay as they were given")
def test_ps_shows_no_secret() -> None:
    program = (
        "import sys, psutil; from slime_events.app.cli import main; "
        "main.run_command = lambda *_, **__: print(psutil.Process().cmdline(), sys.argv, sys.orig_argv) or 0; "
        "main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "train", "--nats-url", NATS, "--sglang-api-key=planted"],
        capture_output=True, text=True, check=True, env=os.environ,
    )  # fmt: skip
    assert done.stdout.count("nats://me:xxxxxxx@h:4222") == 3
    assert "planted" not in done.stdout

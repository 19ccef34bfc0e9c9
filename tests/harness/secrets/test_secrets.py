"""Give a run secrets in every possible way: it uses them and leaves none behind.

`python -m tests.harness.secrets` does the same with the real engine and trainer.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3fs import S3FileSystem

from schemas.errors import AccessDenied, StoreUnavailable
from slime_events.algorithms.train_arguments import parse_train
from slime_events.app.cli.main import main
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from tests.docs.pages import ROOT
from tests.harness.secrets.planted import (
    NATS_PASSWORD,
    S3_SECRET,
    SECRETS,
    Servers,
    found_in,
    found_in_archive,
    found_in_spans,
    found_under,
    servers,
)
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import run_with, tiny

VARIABLES = ("SLIME_EVENTS_NATS_URL_PASSWORD", "SLIME_EVENTS_OTLP_ENDPOINT_PASSWORD", "SLIME_EVENTS_SGLANG_API_KEY")


@pytest.fixture(scope="module")
def those(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(tmp_path_factory.mktemp("servers")) as those:
        yield those


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, those: Servers) -> Iterator[None]:
    """The planted secrets, and afterwards none of those that flags have put there."""
    for name, value in those.environment.items():
        monkeypatch.setenv(name, value)
    yield
    for name in VARIABLES:
        os.environ.pop(name, None)


def settings_of(folder: Path, *flags: str) -> TrainSettings:
    text = to_toml(tiny(folder, "secretive", rollout={"num_rollout": 2}))
    return parse_train(["--config", "the settings", *flags], read=lambda _: text).settings


def test_a_run_leaves_no_secret(tmp_path: Path, those: Servers, capfd: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "runs" / "secretive")
    with cheap_parts(Parts()):
        asyncio.run(run_with(settings_of(tmp_path, *those.flags)))
    for command, *words in (["show"], ["tail", "--no-follow"], ["audit"], ["query", "SELECT * FROM runs"]):
        assert main([command, folder, *words]) == 0
    for name in VARIABLES:
        del os.environ[name]
    assert main(["show", folder]) == 2
    printed = capfd.readouterr()
    assert "needs the environment variable SLIME_EVENTS_NATS_URL_PASSWORD" in printed.err
    assert found_in("printed", f"{printed.out}{printed.err}".encode()) == []
    assert found_under(tmp_path, those.stored) == []
    assert found_in_archive("secretive") == []
    assert found_in_spans(those.received) == []
    assert (bool(those.received), those.refused) == (True, 0), "the collector got spans, and only with the token"


def test_starts_that_are_refused_say_no_secret(
    tmp_path: Path, those: Servers, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slime_events.app.launch.log_server.OPEN_DEADLINE_S", 1.0)
    wrong = those.flags[1].replace(NATS_PASSWORD, f"not-{NATS_PASSWORD}")
    with cheap_parts(Parts()), pytest.raises(AccessDenied) as refused:
        asyncio.run(run_with(settings_of(tmp_path, *those.flags, "--nats-url", wrong)))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"not-{S3_SECRET}")
    S3FileSystem.clear_instance_cache()  # of the test before, with the right key
    with pytest.raises(StoreUnavailable) as refused_too:
        found_in_archive("another")
    printed = capfd.readouterr()
    texts = (str(refused.value), str(refused_too.value), printed.out, printed.err)
    assert found_in("said", "\n".join(texts).encode()) + found_under(tmp_path) == []


@pytest.mark.parametrize("secret", SECRETS)
def test_the_search_finds_what_is_there(tmp_path: Path, secret: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text(f"x{secret}y")
    assert found_under(tmp_path) == [f"{tmp_path / 'a' / 'b'}: {secret}"]


@pytest.mark.soak
@pytest.mark.real
def test_a_real_run_leaves_no_secret() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.secrets"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""Servers that cannot be the engines of a run are refused by name before it starts."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from schemas.errors import InvalidValue
from slime_events.app.cli.checks import Outcome
from slime_events.app.cli.commands import doctor
from slime_events.app.cli.main import main
from slime_events.app.cli.server_checks import check_server
from slime_events.app.launch.external_preflight import check_external, check_reads_weights
from slime_events.core.config.settings import TrainSettings
from slime_events.plugins.tokenizer import load_tokenizer
from tests.cli.invoke import arguments
from tests.engine import tiny_model
from tests.scripted_server import Answers, ScriptedServer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 264}))
    tiny_model._tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def servers(checkpoint: Path) -> Iterator[list[ScriptedServer]]:
    """Two servers, in a thread of their own."""
    tokenizer = load_tokenizer(str(checkpoint))
    answers = [Answers(str(checkpoint), lambda text: tokenizer.encode(text, add_special_tokens=False)) for _ in "ab"]
    servers, loop = list(map(ScriptedServer, answers)), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    for server in servers:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    yield servers
    for server in servers:
        asyncio.run_coroutine_threadsafe(server.kill(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def _settings(checkpoint: Path, servers: list[ScriptedServer]) -> TrainSettings:
    settings = TrainSettings()
    engine = msgspec.structs.replace(
        settings.engine,
        hf_checkpoint=str(checkpoint),
        device="cpu",
        rollout_external_engine_addrs=[server.url for server in servers],
    )
    return msgspec.structs.replace(settings, engine=engine)


def test_servers_that_fit_are_taken(checkpoint: Path, servers: list[ScriptedServer], tmp_path: Path) -> None:
    settings = _settings(checkpoint, servers)
    check_external(settings)
    check_reads_weights(settings, str(tmp_path / "weights"))
    assert [len(server.loaded) for server in servers] == [1, 1]
    assert {server.weights for server in servers} == {"default"}
    assert list((tmp_path / "weights").iterdir()) == []


def test_each_one_that_does_not_fit_is_named(checkpoint: Path, servers: list[ScriptedServer], tmp_path: Path) -> None:
    settings, (first, second) = _settings(checkpoint, servers), servers
    first.answers.server_info["dtype"] = "bfloat16"
    second.answers.tokenize = lambda text: [1]
    with pytest.raises(InvalidValue) as refused:
        check_external(settings)
    for part in (first.url, "--dtype float32", second.url, "tokenizer"):
        assert part in str(refused.value)
    second.answers.refuses = "no such folder"
    with pytest.raises(InvalidValue) as refused:
        check_reads_weights(settings, str(tmp_path))
    for part in (second.url, str(tmp_path), "no such folder"):
        assert part in str(refused.value)
    assert first.url not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_doctor_looks_at_each_server_as_a_start_does(
    checkpoint: Path, servers: list[ScriptedServer], tmp_path: Path
) -> None:
    runs, (first, second) = tmp_path / "runs", servers
    second.answers.server_info["dtype"] = "bfloat16"
    good, bad = (check_server(server.url, str(checkpoint), runs, "cpu") for server in servers)
    assert (good.outcome, bad.outcome) == (Outcome.OK, Outcome.FAIL)
    assert "--dtype float32" in bad.detail
    assert not bad.detail.startswith("--rollout")
    assert [len(server.loaded) for server in servers] == [1, 0]
    assert not runs.exists()
    first.answers.refuses = "no such folder"
    assert "no such folder" in check_server(first.url, str(checkpoint), runs, "cpu").detail
    assert check_server("nonsense:port", str(checkpoint), runs, "cpu").outcome is Outcome.FAIL


@pytest.mark.parametrize("words", [["--hf-checkpoint", "m"], ["--rollout-external-engine-addrs", "10.0.0.5:30000"]])
def test_doctor_wants_servers_and_their_model_together(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--quick", *words]) == 2
    assert "too" in capsys.readouterr().err


def test_doctor_has_a_row_for_each_server(checkpoint: Path, servers: list[ScriptedServer], tmp_path: Path) -> None:
    urls = [server.url for server in servers]
    words = [
        "--quick",
        "--runs-dir",
        str(tmp_path),
        "--rollout-external-engine-addrs",
        *urls,
        "--hf-checkpoint",
        str(checkpoint),
    ]
    rows = {check.name: check.outcome for check in doctor.diagnose(arguments("doctor", *words))}
    assert {name: outcome for name, outcome in rows.items() if name.startswith("server ")} == {
        f"server {url}": Outcome.OK for url in urls
    }

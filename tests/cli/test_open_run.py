"""`open_run`: a name, a folder or an archive, and the error if there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.errors import RunNotFound
from slime_events.app.cli.main import main
from slime_events.core.run.run_reader import open_run
from storage.jetstream.address import NatsPlace
from storage.jetstream.log import JetStreamLog
from storage.nats.server import NatsServer
from storage.open_log import record_place
from tests import made
from tests.cli.small_run import appends, events, finished, recorded

SAID = finished(list(events()))


def _archived(folder: Path) -> str:
    return made.archived(folder, recorded(SAID))


async def test_by_name_by_folder_and_by_archive(tmp_path: Path) -> None:
    server = await NatsServer.start(tmp_path / "server")
    folder = tmp_path / "runs" / "copied-under-another-name"
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text('[run]\nrun = "small"\n')
    record_place(folder, NatsPlace(url=server.url))
    log = await JetStreamLog.open(server.url, "small")
    await log.append(appends(SAID))
    await log.close()
    try:
        reads = []
        for where in (folder.name, str(folder), _archived(tmp_path / "archive")):
            async with open_run(where, tmp_path / "runs") as opened:
                reads.append([recorded async for recorded in opened.log.read()])
                assert (opened.run, opened.settings.rollout.num_rollout) == ("small", 2)
                assert (opened.folder is None) == (where == opened.where == f"{tmp_path}/archive/small")
            async with open_run(opened.where) as again:
                assert await again.log.position() == len(SAID)
        assert len(reads[0]) == len(SAID)
        assert reads[0] == reads[1] == reads[2]
    finally:
        await server.stop()


async def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    for where in ("small", f"{tmp_path}/small", f"file://{tmp_path}/small"):
        with pytest.raises(RunNotFound):
            async with open_run(where, tmp_path):
                pass


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ([], "steps", 2),
        (["--step", "1"], "version", 2),
        (["--sample", "inbox-aa-s1"], "sample", "inbox-aa-s1"),
    ],
)
def test_views_of_an_archive(
    words: list[str], field: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = _archived(tmp_path)
    assert main(["show", where, *words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    value_ = shown[field]
    assert (len(value_) if isinstance(value_, list) else value_) == value

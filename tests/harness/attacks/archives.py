"""C17: archives that an attacker has written, made of the run's own; restored and repaired beside the run."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from schemas.runs import RunStarted
from storage.archive.reader import ArchiveReader
from storage.log import Recorded
from tests import made
from tests.harness.attacks.attack import Answer, Attack
from tests.harness.attacks.environment import PLANTED
from tests.harness.attacks.scene import Scene
from tests.harness.attacks.terminal import controls, slime_events

Change = Callable[[Path, dict[str, Any]], None]
GIGABYTES = 6
FIRST = Path("manifest") / "00000001.json"


def _field(name: str, value: Any) -> Change:
    return lambda folder, manifest: manifest.update({name: value})


def _bomb(folder: Path, manifest: dict[str, Any]) -> None:
    """A segment of some KB that holds gigabytes of zeros, as its manifest says."""
    maker = zstandard.ZstdCompressor(level=1).compressobj()
    piece = bytes(1 << 24)
    data = b"".join([*(maker.compress(piece) for _ in range(GIGABYTES << 6)), maker.flush()])
    digest = hashlib.sha256(data).hexdigest()
    name = f"segments/00000001-{digest[:16]}.zst"
    (folder / name).write_bytes(data)
    manifest.update(name=name, sha256=digest, bytes=len(data), raw_bytes=GIGABYTES << 30)


def _cut(folder: Path, manifest: dict[str, Any]) -> None:
    path = folder / manifest["name"]
    path.write_bytes(path.read_bytes()[:100])


def _gone(folder: Path, manifest: dict[str, Any]) -> None:
    """A name outside, under which `--repair` would make the segment again."""
    (folder / manifest["name"]).unlink()
    manifest["name"] = "../../../outside.zst"


CHANGES: tuple[tuple[str, Change], ...] = (
    ("a name outside", _field("name", "../../../outside.zst")),
    ("a name outside, the segment gone", _gone),
    ("an absolute name", _field("name", "/etc/hostname")),
    ("a digest that is none", _field("sha256", "../../x")),
    ("a parent that is none", _field("parent", "zz")),
    ("a count of 2**62", _field("count", 2**62)),
    ("a negative first position", _field("first", -5)),
    ("bytes of 2**50", _field("bytes", 2**50)),
    ("raw bytes of 2**50", _field("raw_bytes", 2**50)),
    ("a layout to come", _field("layout", 99)),
    ("a name with escapes", _field("name", "segments/\x1b[2J.zst")),
    ("6 GB in some KB", _bomb),
    ("a segment cut short", _cut),
    ("a number of a text", _field("segment", "one")),
)
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("restore", "RUN", "ARCHIVE", "--runs-dir", "AGAIN"),
    ("archive", "FOLDER", "ARCHIVE", "--verify"),
    ("archive", "FOLDER", "ARCHIVE", "--repair"),
    ("audit", "ARCHIVE/RUN"),
)


def _copy(scene: Scene) -> Path:
    """Copy the run's archive into a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="archive-", dir=scene.work)) / "in" / "here"
    shutil.copytree(scene.folder / "archive", folder)
    return folder


def _names(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def _words(scene: Scene, words: tuple[str, ...], archive: Path) -> list[str]:
    again = archive.parents[1] / "again"
    named = {"RUN": scene.run, "FOLDER": str(scene.folder), "AGAIN": str(again), "ARCHIVE": str(archive)}
    named |= {"ARCHIVE/RUN": str(archive / scene.run)}
    return [named.get(word, word) for word in words]


async def believed(scene: Scene, change: Change, words: tuple[str, ...]) -> Answer:
    """Run a command on a changed archive: it prints an error, and writes no file outside its folders."""
    archive = await asyncio.to_thread(_copy, scene)
    path = archive / scene.run / FIRST
    manifest = json.loads(path.read_text())
    change(archive / scene.run, manifest)
    path.write_text(json.dumps(manifest))
    before = _names(archive.parents[1])
    done = await asyncio.to_thread(slime_events, *_words(scene, words, archive))
    allowed = (archive / scene.run, archive.parents[1] / "again")
    outside = [
        path for path in _names(archive.parents[1]) - before if not any(path.is_relative_to(place) for place in allowed)
    ]
    printed = " ".join((done.stderr or done.stdout).decode("utf-8", "replace").split())[-80:]
    bad = outside or b"Traceback" in done.stderr or done.returncode < 0 or controls(done.stdout + done.stderr)
    refused = done.returncode != 0 or (words[0] == "archive" and "--repair" in words)
    shutil.rmtree(archive.parents[1])
    return Answer(f"exit {done.returncode} {printed.encode('ascii', 'backslashreplace').decode()}", refused and not bad)


async def expanded(scene: Scene) -> Answer:
    """The address of a server, in an archive's settings, with a reference to a secret in it."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"auth_required":true}\r\n')
        heard.append(await reader.read(4096))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    archive = Path(tempfile.mkdtemp(prefix="archive-", dir=scene.work)) / "archive"
    await asyncio.to_thread(_with_address, scene, archive, f"nats://u:${{AWS_SECRET_ACCESS_KEY}}@127.0.0.1:{port}")
    words = ("restore", scene.run, str(archive), "--runs-dir", str(archive.parent / "again"))
    done = await asyncio.to_thread(slime_events, *words)
    server.close()
    sent = PLANTED["AWS_SECRET_ACCESS_KEY"].encode() in b"".join(heard) + done.stdout + done.stderr
    return Answer(
        f"exit {done.returncode}; connected {len(heard)} times; the secret was {'sent' if sent else 'not sent'}",
        not heard and not sent,
    )


def _with_address(scene: Scene, archive: Path, url: str) -> None:
    records: list[Recorded] = list(ArchiveReader(str(scene.folder / "archive"), scene.run).read())
    first = records[0].envelope.event
    assert isinstance(first, RunStarted)
    settings = first.settings | {"run": first.settings["run"] | {"nats_url": url}}
    event = msgspec.structs.replace(first, settings=settings)
    records[0] = msgspec.structs.replace(records[0], envelope=msgspec.structs.replace(records[0].envelope, event=event))
    made.archived(archive, records, closed=False)


ATTACKS: list[Attack] = [
    *(
        Attack(
            f"{name}: {words[0]}{' ' + words[-1] if words[0] == 'archive' else ''}",
            "archive",
            "an error in words",
            partial(believed, change=change, words=words),
            200.0,
        )
        for name, change in CHANGES
        for words in COMMANDS
        if words[0] == "restore" or name in ("a name outside", "a name outside, the segment gone", "6 GB in some KB")
    ),
    Attack("a secret in the address of its server", "archive", "nobody is asked", expanded, 200.0),
]

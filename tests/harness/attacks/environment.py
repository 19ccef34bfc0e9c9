"""C15: what an agent's program sees of the environment; C18: who may read the run's folder."""

from __future__ import annotations

import json
import stat

from tests.harness.attacks.attack import Answer, Attack
from tests.harness.attacks.scene import Scene

PLANTED = {
    "AWS_SECRET_ACCESS_KEY": "planted-aws",
    "HF_TOKEN": "planted-hf",
    "MY_API_KEY": "planted-key",
    "DATABASE_URL": "postgres://me:planted-word@127.0.0.1/x",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=planted-otel",
    "DB_PASSWORD": "planted-db",
    "SOME_CREDENTIALS": "planted-credentials",
}
"""Secrets in the environment of the run, under names in common use."""
MOST_SHOWN = 3


async def programs(scene: Scene) -> Answer:
    """Look for planted secrets in the environment that the programs of sessions have noted."""
    files = list((scene.work / "programs").glob("environment-*.json"))
    seen = sorted(
        {name for file in files for name, value in json.loads(file.read_text()).items() if "planted" in value}
    )
    return Answer(f"{len(files)} programs; see {seen or 'no secret'}", bool(files) and not seen)


async def modes(scene: Scene) -> Answer:
    """Look for folders and files below the run's that users other than its owner may read."""
    if stat.S_IMODE(scene.folder.stat().st_mode) & 0o077 == 0:
        return Answer("the run's folder is its owner's alone", True)
    others = [path for path in scene.folder.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077]
    named = ", ".join(str(path.relative_to(scene.folder)) for path in others[:MOST_SHOWN])
    return Answer(f"{stat.S_IMODE(scene.folder.stat().st_mode):o}; {len(others)} below it: {named}", False)


ATTACKS: list[Attack] = [
    Attack("the environment of programs", "agent command", "no secret", programs),
    Attack("another user of the machine", "run folder", "0700", modes),
]

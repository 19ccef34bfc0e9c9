"""Test the record of a prompt file: equal for equal bytes anywhere, different for another file or after growth."""

from __future__ import annotations

import gzip
from pathlib import Path

import fsspec
import pytest

from schemas.errors import InvalidValue
from schemas.runs import PromptFile
from slime_events.app.launch.run_record import RunRecord
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.prompts import prompt_files
from slime_events.loop.prompts.prompt_files import changed_files, check_prompt_files, prompt_file, read_prompt_files
from tests import made

ROWS = b"".join(b'{"q": "%d"}\n' % n for n in range(200))


def settings_of(path: str, *evaluated: str) -> TrainSettings:
    pairs = [word for n, path in enumerate(evaluated) for word in (f"set{n}", path)]
    return made.settings(data={"prompt_data": path}, evaluation={"eval_prompt_data": pairs})


def seen(path: str) -> dict[str, PromptFile]:
    return {path: prompt_file(path)}


def test_the_same_bytes_are_the_same_file_near_and_far(tmp_path: Path) -> None:
    near = tmp_path / "a.jsonl"
    near.write_bytes(ROWS)
    with fsspec.open("memory://changed/a.jsonl", "wb") as remote:
        remote.write(ROWS)
    first, other = prompt_file(str(near)), prompt_file("memory://changed/a.jsonl")
    assert (first.size, first.digest) == (other.size, other.digest) == (len(ROWS), first.digest)


def test_files_of_a_run_are_looked_at_cached_and_without_slices(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(ROWS)
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(ROWS))
    settings = settings_of(f"{path}@[:3]", f"{path}@[3:]", str(packed), str(tmp_path / "none.jsonl"))
    assert [(file.path, file.size) for file in read_prompt_files(settings)] == [
        (str(path), len(ROWS)),
        (str(packed), packed.stat().st_size),
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_every_change_is_said_with_both_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    if not whole:  # a large file is known by its blocks
        monkeypatch.setattr(prompt_files, "BLOCK", 32)
        monkeypatch.setattr(prompt_files, "WHOLE", 64)
    path = tmp_path / "a.jsonl"
    path.write_bytes(ROWS)
    before, settings = seen(str(path)), settings_of(str(path))
    assert changed_files(before, settings) == []
    assert changed_files({}, settings) == [], "an older run has recorded nothing"
    path.write_bytes(ROWS[:-4] + b"x" + ROWS[-3:])
    (note,) = changed_files(before, settings)
    assert f"it had {len(ROWS):,} bytes (sha256 {before[str(path)].digest[:12]})" in note
    path.write_bytes(ROWS + b'{"q": "new"}\n')
    (note,) = changed_files(before, settings)
    assert "has grown from" in note
    path.write_bytes(ROWS[:40])
    assert "and now has 40 bytes" in changed_files(before, settings)[0]
    with pytest.raises(InvalidValue, match=r"(?s)run demo .*now has 40 bytes.*--accept-changed-data"):
        check_prompt_files(before, settings, "demo", accept=False)
    assert "now has 40 bytes" in check_prompt_files(before, settings, "demo", accept=True)[0]
    path.unlink()
    with pytest.raises(InvalidValue, match="no file"):
        check_prompt_files(before, settings, "demo", accept=True)


def test_the_newest_incarnation_says_what_a_file_held() -> None:
    old, new, other = (PromptFile(path=path, size=size, digest="") for path, size in (("a", 1), ("a", 2), ("b", 3)))
    started = made.started(prompt_files=(old, other))
    resumed = (
        made.resumed(prompt_files=(new,)),
        made.resumed(2),
    )
    record = RunRecord(started, resumed, last=None, steps=0)  # type: ignore[arg-type]
    assert record.prompt_files == {"a": new, "b": other}

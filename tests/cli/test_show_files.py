"""`show RUN`: what lies where."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from slime_events.analysis.views.disk import view_disk
from slime_events.app.cli.commands.show_files import files_text, ranges_text
from slime_events.core.run.run_folder import RunFolder
from slime_events.model.json_values import plain
from storage.archive.writer import ArchiveWriter
from tests.cli.small_run import small_run


async def test_versions_and_segments_are_named_with_their_bytes(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "small")
    folder.settings.write_text("")
    for version in (0, 4, 8, 9, 10):
        (folder.weights / f"v{version:06d}-abc").mkdir()
        (folder.weights / f"v{version:06d}-abc" / "model.safetensors").write_bytes(b"x" * 1000)
    for name in ("v000008", ".v000004.removed", ".v000008.aside"):
        (folder.checkpoints / name).mkdir(parents=True)
    writer = ArchiveWriter(str(folder.archive), "small")
    async for recorded in (await small_run()).read():
        writer.add(recorded)
        if recorded.position == 20:
            writer.seal()
    writer.close()
    disk = view_disk(folder)
    assert plain(disk.weights) == {"versions": [0, 4, 8, 9, 10], "bytes": 5000}
    assert disk.checkpoints.versions == (8,)
    assert (disk.archive.last, disk.archive.segments) == (57, 2)
    text = files_text(folder, disk)
    assert "versions 0, 4, 8 to 10, 0.0 MB" in text
    assert "positions 1 to 57 in 2 segments" in text


async def test_an_archive_that_cannot_be_read_is_said_and_hides_nothing_else(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "small")
    folder.settings.write_text('[run]\narchive_url = "nowhere://bucket"\n')
    disk = view_disk(folder)
    assert "nowhere" in plain(disk.archive)["error"]
    assert "cannot be read" in files_text(folder, disk)
    assert disk.weights.versions == ()


@given(st.sets(st.integers(0, 40)))
def test_ranges_name_each_number_once(numbers: set[int]) -> None:
    named = set[int]()
    for part in filter(None, ranges_text(sorted(numbers)).split(", ")):
        first, _, last = part.partition(" to ")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == numbers

"""The command line of the tools that generate pages: wrong words write nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.page_command import print_page, update_page, write_page


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), ([], 2), (["nowhere.md"], 2), (["a.md", "b.md"], 2)])
def test_wrong_words_write_nothing(
    words: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("old")
    with pytest.raises(SystemExit) as ended:
        write_page("Generate a page.", lambda: "new", words)
    assert ended.value.code == code
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.md": "old", "b.md": "old"}


def test_a_page_is_written_updated_or_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("old")
    update_page(None, lambda text: f"{text} and new", [str(page)])
    assert page.read_text() == "old and new"
    write_page(None, lambda: "new", [str(page)])
    assert page.read_text() == "new"
    print_page(None, lambda: "shown", [])
    assert capsys.readouterr().out == "shown"
    with pytest.raises(SystemExit):
        print_page(None, lambda: pytest.fail("nothing is generated"), ["--help"])

"""Tables: plain and whole in a pipe or a file, laid out for the width of a terminal."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest

from slime_events.app.cli.render.text import columns_text, table

HEAD, ROWS = ("name", "value"), [("v0[0:2]", 1.5), ("日本", None), ("x" * 90, 22)]


def test_a_piped_table_is_plain_and_whole() -> None:
    lines = table(HEAD, ROWS, "  ").splitlines()
    assert [line.split() for line in lines] == [["name", "value"], ["v0[0:2]", "1.5"], ["日本", "-"], ["x" * 90, "22"]]
    assert all(line.startswith("  ") for line in lines)
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_it_folds_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    text = table(HEAD, ROWS)
    assert text.count("x") == 90
    assert "v0[0:2]" in text
    assert max(map(len, text.splitlines()[1:])) <= 40
    with contextlib.redirect_stdout(io.StringIO()):
        assert "x" * 90 in table(HEAD, ROWS), "for a file"


def test_what_is_cut_says_so() -> None:
    text = columns_text(HEAD, [("x" * 90, "22")], (False, True), width=40, cut=True)
    assert "…" in text
    assert "22" in text

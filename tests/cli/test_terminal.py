"""Print text alone: no escape sequence, control character or markup from outside reaches a terminal."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.envelope import enclose
from schemas.prompts import PromptRejected, Source
from schemas.runs import RunFailed
from schemas.text import terminal_text
from schemas.workers import WorkerLost
from slime_events.analysis.lineage.picture import escape
from slime_events.app.cli.checks import Check, Outcome
from slime_events.app.cli.commands import doctor
from slime_events.app.cli.main import main
from slime_events.app.cli.render.event_line import event_line
from slime_events.app.cli.render.text import (
    block,
    cell_text,
    columns_text,
    exact_json,
    fields,
    json_line,
    json_text,
    one_line,
    shorten,
    table,
)
from slime_events.app.launch.view import LiveView, PlainView
from slime_events.app.terminal import SafeStream, raw_stream, safe_output
from slime_events.core.telemetry.process_log import setup_logging
from storage.log import Recorded
from tests import made
from tests.cli.test_hostile_archive import archived

HOSTILE = (
    "\x1b]0;gone\x07\x1b[2J\x1b[31mred\x9b1m\u202eevil\u2066\r\x08\x7f[red]x[/red][link=http://e]y[/link]\x00\x85\u2028"
)
texts = st.text(alphabet=st.one_of(st.characters(), st.sampled_from(HOSTILE + "\n\t\ud800")), max_size=60)


def controls(text: str) -> str:
    """Return the characters that a terminal would obey, or show as something else."""
    return "".join(character for character in text if terminal_text(character) != character)


RENDERERS: dict[str, Callable[[str], str]] = {
    "cell": cell_text,
    "cell of a list": lambda text: cell_text([text]),
    "shorten": lambda text: shorten(text, 20),
    "block": block,
    "fields": lambda text: fields([("a", text), ("b", 1)]),
    "table": lambda text: table(("a", "b"), [(text, 1), (2, text)]),
    "name of a field": lambda text: fields([(text, 1)]),
    "head of a table": lambda text: table((text, "b"), [(1, 2)]),
    "one line": one_line,
    "json": lambda text: json_text({"a": [_valid(text)]}),
    "json line": lambda text: json_line({"a": text}),
}


def _valid(text: str) -> str:
    return text.encode(errors="replace").decode()


@pytest.mark.parametrize("name", RENDERERS)
@given(text=texts)
def test_every_renderer_gives_text_alone(name: str, text: str) -> None:
    assert not controls(RENDERERS[name](text))


@given(texts)
def test_one_value_makes_one_line(text: str) -> None:
    assert one_line(text).splitlines() in ([one_line(text)], [])
    assert len(shorten(text, 20)) <= 20
    assert len(shorten(text, 20).splitlines()) <= 1
    assert len(table((text,), [(text,), (text,)]).split("\n")) == 3
    assert len(fields([(text, 1), ("b", 2)]).split("\n")) == 2


@given(texts)
def test_json_keeps_the_data_exact(text: str) -> None:
    assert json.loads(json_line({"a": text}))["a"] == text
    assert json.loads(json_text({"a": _valid(text)}))["a"] == _valid(text)
    printed = json_line([text])
    assert terminal_text(printed) == printed


def test_no_character_that_a_terminal_obeys_is_left_in_json() -> None:
    every = "".join(map(chr, (*range(0x20, 0xD800), *range(0xE000, 0x10000))))
    assert json.loads(exact_json(json.dumps(every, ensure_ascii=False))) == every
    assert not controls(exact_json(json.dumps(every, ensure_ascii=False)))


@given(texts)
def test_a_stream_prints_text_alone(text: str) -> None:
    for terminal in (False, True):
        raw = _Terminal() if terminal else io.StringIO()
        stream = SafeStream(raw)
        print(text, file=stream)
        stream.writelines([text, "\n"])
        left = controls(raw.getvalue())
        assert not left or (terminal and set(left) == {"\x1b"} and "\x1b[1m" in text + "\x1b[0m")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_bold_alone_is_obeyed() -> None:
    raw = _Terminal()
    SafeStream(raw).write(f"\x1b[1mhead\x1b[0m {HOSTILE}")
    assert raw.getvalue().startswith("\x1b[1mhead\x1b[0m ")
    assert not controls(raw.getvalue().removeprefix("\x1b[1mhead\x1b[0m "))


def test_bytes_for_a_terminal_are_text_too() -> None:
    raw = _Terminal()
    stream = SafeStream(raw)
    for byte in f"ä{HOSTILE}".encode():  # characters may be cut anywhere
        stream.buffer.write(bytes([byte]))
    assert raw.getvalue() == terminal_text(f"ä{HOSTILE}")
    assert stream.buffer is stream.buffer


def test_bytes_that_go_elsewhere_are_exact() -> None:
    raw = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    SafeStream(raw).buffer.write(HOSTILE.encode())
    assert raw.buffer.getvalue() == HOSTILE.encode()  # type: ignore[attr-defined]


def _recorded(event: Any) -> Recorded:
    envelope = enclose("r", event, at=1, producer="test")
    return Recorded(1, envelope.subject, envelope, b"")


@given(texts)
def test_an_event_is_one_line(text: str) -> None:
    for event in (
        made.started(code_version=text),
        RunFailed(reason=text, role=text),
        made.submitted(text=text, source=Source(text, row=1, key=text)),
        PromptRejected(source=Source(text, row=1), reason=text),
        WorkerLost(worker="w", role=text, reason=text),
    ):
        line = event_line(_recorded(event))
        assert not controls(line)
        assert "\n" not in line


def test_errors_and_help_are_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words in (
        [HOSTILE], ["show", HOSTILE.replace("\0", "")], ["show", "--" + HOSTILE], ["tail", "x", "--type", HOSTILE],
        ["query", "x", f"select '{HOSTILE}'"],
    ):  # fmt: skip
        assert main([*words]) in (1, 2)
        captured = capsys.readouterr()
        assert not controls(captured.out + captured.err)
        assert captured.err


def test_warnings_and_log_lines_are_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import warnings

    with safe_output():
        sys.stderr.write(warnings.formatwarning(HOSTILE, UserWarning, "x.py", 1))  # as Python shows one
        logging.StreamHandler(sys.stderr).emit(logging.makeLogRecord({"msg": HOSTILE}))
    assert not controls(capsys.readouterr().err)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        path = setup_logging("role", tmp_path)
        logging.getLogger("x").warning("%s", HOSTILE)
    finally:
        for handler in [each for each in root.handlers if each not in before]:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
        logging.captureWarnings(False)
    assert "evil" in path.read_text()
    assert not controls(path.read_text())


def test_doctor_prints_text(capsys: pytest.CaptureFixture[str]) -> None:
    with safe_output():
        doctor.print_checks([Check("x[red]", Outcome.FAIL, f"found {HOSTILE}", f"mend {HOSTILE}")])
    out = capsys.readouterr().out
    assert not controls(out)
    assert "[link=http://e]y[/link]" in "".join(out.split("\n"))


def test_the_lines_and_the_picture_of_a_run_are_text() -> None:
    lines, raw = io.StringIO(), _Terminal()
    PlainView(lines).note(HOSTILE)
    assert not controls(lines.getvalue())
    before = sys.stdout, sys.stderr
    with safe_output():
        view = LiveView(SafeStream(raw))  # type: ignore[arg-type]
        try:
            view.note(HOSTILE)
            assert isinstance(sys.stderr, SafeStream)
        finally:
            view.close()
    assert (sys.stdout, sys.stderr) == before
    assert "\x1b]0" not in raw.getvalue()
    assert "\x1b[2J" not in raw.getvalue()
    assert "[red]x[/red]" in raw.getvalue()
    assert not {"\x07", "\x9b", "\u202e", "\x08"} & set(raw.getvalue())


def test_tables_and_csv_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    file = os.fdopen(theirs, "w", encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", file)
    with safe_output():
        print(table(("a", "b"), [(HOSTILE, 1)]))
        print(columns_text(("a",), [[one_line(HOSTILE)]], [False], width=30, cut=True))
        sys.stdout.buffer.write(HOSTILE.encode())
        sys.stdout.flush()
        assert raw_stream(sys.stdout).isatty()
    file.close()
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    shown = shown.replace("\r\n", "\n").replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert not controls(shown)


HOSTILE_COMMANDS = (
    ["show"], ["show", "--group", "h"], ["show", "--at", "2"], ["tail", "--no-follow"],
    ["tail", "--no-follow", "--json"], ["tail", "--no-follow", "--json", "--full"],
    ["query", "select * from events"], ["query", "select * from groups"],
    ["query", "select * from groups", "--format", "json"], ["query", f"select 1 as \"{HOSTILE.replace(chr(0), '')}\""],
    ["audit"], ["audit", "--json"], ["metrics"], ["show", "--json"], ["replay"], ["rescore"], ["lineage"],
)  # fmt: skip


@pytest.mark.parametrize("words", HOSTILE_COMMANDS, ids=" ".join)
def test_a_command_over_a_hostile_run_prints_text(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = HOSTILE.replace("\ud800", "") + "\nerror: faked"
    prompt = made.submitted("h", text=text, source=Source(text, row=2, key=text), label=text, metadata={text: text})
    lost = WorkerLost(worker="w-1", role=text, reason=text)
    failed = RunFailed(reason=text, role=text, waited_for=text)
    rejected = PromptRejected(source=Source(text, row=3), reason=text)
    settings = {"rollout": {"num_rollout": 1}, "trainer": {"hf_checkpoint": "m"}}
    url = archived(tmp_path, settings, None, prompt, lost, rejected, failed)
    assert main([words[0], f"{url}/r", *words[1:]]) in (0, 1, 2)
    captured = capsys.readouterr()
    assert not controls(captured.out + captured.err)
    assert captured.out + captured.err
    assert "Traceback" not in captured.err
    if words[0] == "tail" and "--json" not in words:
        assert len(captured.out.splitlines()) == 6, "run.started, a prompt, and the four hostile ones"


def test_colours_of_other_packages_are_left_out_on_a_terminal() -> None:
    raw = _Terminal()
    SafeStream(raw).write("\x1b[34m\x1b[1mwandb\x1b[0m: run \x1b[8mhidden\x1b[38;5;16mblack\x1b[2J")  # type: ignore[arg-type]
    assert raw.getvalue() == "\x1b[1mwandb\x1b[0m: run hiddenblack\\x1b[2J"


@given(texts)
def test_a_picture_of_a_lineage_is_well_formed(text: str) -> None:
    marked = f"<t a='{escape(text)}'>{escape(text)}</t>"
    assert ElementTree.fromstring(marked).text == (terminal_text(text) or None)


def test_what_counts_as_printable_is_obeyed_by_no_terminal() -> None:
    """The short way of `one_line`."""
    assert all(
        terminal_text(character) == character for character in map(chr, range(0x110000)) if character.isprintable()
    )

"""Test that everything a process prints is in its log too."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from slime_events.core.telemetry.printed import MOST, Printed, copy_output_to_log


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.name, record.getMessage()) for record in caplog.records]


def test_both_streams_are_logged_and_go_where_they_went(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout, sys.stderr
    with caplog.at_level(logging.INFO), copy_output_to_log():
        print("a", "b")
        print("half", end="")
        print("", file=sys.stderr)
        print(" a line\n\nnext", file=sys.stdout)
        print("wrong", file=sys.stderr, flush=True)
        with copy_output_to_log():  # another role of this process
            print("once")
    assert (sys.stdout, sys.stderr) == before
    assert lines(caplog) == [
        ("stdout", "a b"), ("stdout", "half a line"), ("stdout", "next"), ("stderr", "wrong"), ("stdout", "once"),
    ]  # fmt: skip
    output = capsys.readouterr()
    assert output.out == "a b\nhalf a line\n\nnext\nonce\n"
    assert output.err == "\nwrong\n"


def test_a_line_without_end_is_logged_in_parts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), copy_output_to_log():
        for _ in range(3 * MOST):
            sys.stdout.write("xy")
    assert sum(len(text) for _, text in lines(caplog)) > 4 * MOST
    assert max(len(text) for _, text in lines(caplog)) <= MOST + 2


def test_threads_do_not_mix_their_lines(caplog: pytest.LogCaptureFixture) -> None:
    def say(word: str) -> None:
        for _ in range(50):
            sys.stdout.write(word)
            sys.stdout.write(word + "\n")

    with caplog.at_level(logging.INFO), copy_output_to_log():
        threads = [threading.Thread(target=say, args=(word,)) for word in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(text for _, text in lines(caplog)) == sorted(word * 2 for word in "abcd" for _ in range(50))


def test_a_handler_that_fails_and_a_stream_that_is_closed_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                raise OSError("no space")
            except OSError:
                self.handleError(record)

    stream = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115
    stream.close()
    handler, log = Broken(), logging.getLogger("stderr")
    monkeypatch.setattr(sys, "stderr", Printed(stream, "stderr"))
    log.addHandler(handler)
    try:
        print("all is lost", file=sys.stderr, flush=True)
    finally:
        log.removeHandler(handler)

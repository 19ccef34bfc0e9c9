"""A prompt file that is another one between two lives of a run: refused with both facts, or accepted and recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import InvalidValue
from schemas.runs import RunResumed, RunStarted
from tests.cli.invoke import command
from tests.run.cheap import Parts, cheap_parts
from tests.run.test_resume import resume, settings_of, stop, words
from tests.run.tiny import events_of, of


def test_other_data_are_refused_unless_they_are_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop(tmp_path, at_once=False)
    run = tmp_path / "runs" / "stopped"
    (started,) = of(events_of(run), RunStarted)
    data = Path(settings_of(tmp_path).data.prompt_data)
    assert [(file.path, file.size) for file in started.prompt_files or ()] == [(str(data), data.stat().st_size)]
    lines = data.read_text().splitlines(keepends=True)
    branch = ["stopped", "--runs-dir", str(tmp_path / "runs"), "--from", "1", "--run", "other"]
    for content, reason in ((lines[::-1], "is a different file: it had"), (lines + lines[:1], "has grown from")):
        data.write_text("".join(content))
        for go_on in (lambda: resume(words(tmp_path)), lambda: command("branch")(branch)):
            with pytest.raises(InvalidValue, match=reason):
                go_on()
    assert of(events_of(run), RunResumed) == []
    with cheap_parts(Parts()):
        assert resume(words(tmp_path, "--accept-changed-data")) == 0
    assert "has grown from" in capsys.readouterr().err
    (resumed,) = of(events_of(run), RunResumed)
    assert [file.size for file in resumed.prompt_files or ()] == [data.stat().st_size]
    data.write_text("".join(lines))
    with cheap_parts(Parts()):
        assert resume(words(tmp_path)) == 0, "a run that is over draws nothing"
        with pytest.raises(InvalidValue, match="is a different file"):
            resume(words(tmp_path, "--num-rollout", "6"))

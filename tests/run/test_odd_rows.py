"""A run over a prompt file as people have them, to its end: what it refuses costs itself, and is counted aloud."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.runs import FinishReason, RunFinished
from tests.run.cheap import Parts, cheap_parts
from tests.run.test_resume import resume, settings_of, words
from tests.run.tiny import Watching, events_of, of, run_with

ODD = [
    b'\xef\xbb\xbf{"q": [{"role": "user", "content": "1+1"}], "a": "2"}',
    b'{"q": [{"role": "user", "content": "caf\xe9 2+2"}], "a": "4"}',
    b'{"q": [{"role": "user", "content": [{"type": "text", "text": "3+4"}]}], "a": "7"}',
    b'{"q": [{"role": "user", "content": [{"type": "image_url"}]}], "a": "7"}',
    b'{"q": [{"role": "user", "content": null}], "a": "7"}',
    b'{"q": [{"role": "user", "content": 8}], "a": "7"}',
    b'{"q": [{"role": "user", "content": "5+5"}], "a": 1e999}',
    b'{"q": [{"role": "user", "content": "5+5"}], "a": NaN}',
    b'{"q": [{"role": "user", "content": "2+4"}], "a": 123456789012345678901234567890}',
    b'{"q": [{"role": "user", "content": "2+6"}], "a": "8", "metadata": "[easy] from a book"}',
    b'{"q": "5+5", "a": "10", "metadata": ' + b"[" * 1500 + b"]" * 1500 + b"}",
    b"// the next ones are hard",
]
TAKEN, REFUSED = 4, 8


def test_a_run_over_odd_rows_ends_well_and_says_what_it_refused(tmp_path: Path) -> None:
    file = tmp_path / "odd.jsonl"
    good = [json.dumps({"q": f"{n}+1", "a": str(n + 1)}).encode() for n in range(2)]
    file.write_bytes(b"\r\n".join([*ODD, *good]))
    how = {"prompt_data": str(file), "input_key": "q", "label_key": "a", "apply_chat_template": True}
    view = Watching()
    with cheap_parts(Parts()):
        settings = settings_of(tmp_path, data=how, rollout={"num_rollout": 2, "rollout_batch_size": 4})
        asyncio.run(run_with(settings, view=view))
    events = events_of(tmp_path / "runs" / "stopped")
    assert [event.reason for event in of(events, RunFinished)] == [FinishReason.ALL_STEPS]
    first = [event for event in of(events, PromptSubmitted) if event.source.epoch == 0]
    assert len(first) == TAKEN + len(good)
    assert {event.source.line for event in of(events, PromptRejected)} == {2, 4, 5, 6, 7, 8, 11, 12}
    notes = [note for note in view.notes if "prompts refused" in note]
    assert len(notes) >= 2, "at the first draw, and at the end"
    assert f"from {REFUSED} rows" in notes[-1] or notes[-1].startswith(f"{REFUSED} of")
    assert "'q' cannot be read: not UTF-8" in " ".join(event.reason for event in of(events, PromptRejected))


def test_a_resumed_run_says_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_bytes(b"\n".join([ODD[1], *(json.dumps({"q": f"{n}+1", "a": "1"}).encode() for n in range(9))]))
    how = {"prompt_data": str(file), "input_key": "q", "label_key": "a", "apply_chat_template": True}
    with cheap_parts(Parts()):
        asyncio.run(run_with(settings_of(tmp_path, data=how, rollout={"num_rollout": 1, "rollout_batch_size": 4})))
        capsys.readouterr()
        assert resume(words(tmp_path, "--num-rollout", "2")) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "prompts refused" in line]
    assert len(lines) >= 2, "at its start, and at the end"
    assert all(line.startswith("1 of ") for line in lines)

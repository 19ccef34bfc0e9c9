"""Test `python -m tests.harness.gpu` without a GPU: it refuses to start, and reports each failed look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.harness.gpu import __main__, attention, frozen
from tests.harness.gpu.agreement import Figures, distances
from tests.harness.gpu.looks import LOOKS
from tests.harness.gpu.repeat import alike
from tests.harness.gpu.report import Report, Row
from tests.harness.gpu.scene import Scene, lengths_to, make_batch


def test_it_refuses_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["tests.harness.gpu"])
    assert __main__.main() == __main__.NO_GPU
    output = capsys.readouterr()
    assert not output.out
    assert output.err.startswith("error: no GPU to look at")
    assert "--device cpu" in output.err


def test_every_look_is_there() -> None:
    for look in LOOKS.values():
        module, function = look.place.split(":")
        assert callable(getattr(__import__(f"tests.harness.gpu.{module}", fromlist=[function]), function))


def test_what_a_look_cannot_do_is_a_row_and_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """torch's varlen attention has no kernel for the CPU; ours has."""
    attention.look_values(Scene("cpu", tmp_path))
    rows = [row for line in capsys.readouterr().out.splitlines() if (row := Row.read(line))]
    assert [row.name for row in rows] == ["PackedAttention, values", "grids, values", "varlen_attn, values"]
    assert max(float(value) for row in rows[:2] for value in row.figures.values()) < 0.01
    assert rows[2].seen.startswith("NotImplementedError")


def test_a_reference_on_the_host_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frozen.look(Scene("cpu", tmp_path))
    rows = [row for line in capsys.readouterr().out.splitlines() if (row := Row.read(line))]
    assert [row.name for row in rows] == [f"reference: {way}" for way in (*frozen.WAYS, "both ways")]
    assert "the same to the bit" in rows[-1].seen


def test_a_report_is_written_with_each_row(tmp_path: Path) -> None:
    report = Report(tmp_path)
    report.add(Row("step", "a | b", {"step, s": 0.123456, "steps": 3}))
    assert (tmp_path / "gpu.md").read_text().splitlines()[-1] == "| step | a \\| b | step, s 0.1235; steps 3 |"
    assert json.loads((tmp_path / "gpu.json").read_text())[0]["figures"]["step, s"] == 0.123456
    assert Row.read("anything else") is None


@pytest.mark.parametrize(("total", "longest"), [(8192, 2048), (32_768, 512), (128, 32), (64, 64)])
def test_lengths_fill_a_micro_batch(total: int, longest: int) -> None:
    lengths = lengths_to(total, longest)
    assert sum(lengths) == total
    assert longest // 8 <= min(lengths) <= max(lengths) <= longest
    assert make_batch(lengths, 64).tokens == total


def test_distances_are_of_what_they_say() -> None:
    true = Figures(torch.tensor([-1.0, -2.0]), 2.0, 4.0)
    seen = Figures(torch.tensor([-1.0, -2.5]), 2.2, 3.0)
    assert list(distances(seen, true).values()) == pytest.approx([0.5, 0.25, 0.1, 0.25])


def test_steps_are_alike_up_to_the_first_that_differs() -> None:
    assert alike(["a", "b", "c"], ["a", "x", "c"]) == 1
    assert alike(["a", "b"], ["a", "b"]) == 2

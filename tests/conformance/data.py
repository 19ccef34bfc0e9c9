"""Families of prompt data: slices, shuffling, the cursor and what a restart keeps."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.reader import parse_path
from slime_events.loop.prompts.source import PromptSource
from tests.conformance.miniature import Miniature

Input = dict[str, Any]


def _source(folder: str, rows: int, **settings: Any) -> PromptSource:
    """Prompts p0, p1, ... and one line that is no JSON, which is no row."""
    path = Path(folder) / "prompts.jsonl"
    lines = [json.dumps({"input": f"p{row}"}) for row in range(rows)]
    path.write_text("\n".join([*lines[:2], "{broken", *lines[2:]]) + "\n")
    seed = settings.pop("seed", 42)
    return PromptSource(DataSettings(prompt_data=str(path), **settings), seed)


def path_slice(case: Input) -> Any:
    path, rows = parse_path(case["path"])
    return [path, None if rows is None else [rows.start, rows.stop]]


def shuffle(case: Input) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        source = _source(folder, case["n"], rollout_shuffle=True, seed=case["rollout_seed"])
        rows = source.take(case["epoch_id"] * case["n"], case["n"])
    return [row.text for row in rows]


def data_source(case: Input) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        if "ask" in case:
            rows = _source(folder, case["dataset_len"]).take(0, case["ask"])
            return {"n_returned": len(rows)}
        return _restart(_source(folder, 5), case["steps"])


def _restart(source: PromptSource, steps: list[str]) -> Any:
    """Six groups are drawn and four trained; the two that are left are what slime puts into its buffer."""
    assert steps == ["get(3)", "get(3)", "add_samples(2 groups)", "save(7)", "new instance", "load(7)"]
    mini = Miniature(groups=4, samples=2, draw=3, rewards=[[0.0, 1.0]] * 6, keep=lambda args, samples: True)
    for group in range(4):
        mini.end(group)
    mini.settle()
    before = len(mini.carried_over())
    mini.state = mini.folded()
    epoch, offset = divmod(mini.state.cursors["mini"], len(source))
    return {
        "buffer_before": before,
        "buffer_after_load": len(mini.carried_over()),
        "sample_offset": offset,
        "epoch_id": epoch,
        "sample_index": mini.state.counts.groups_requested * mini.plan.samples,
        "sample_group_index": mini.state.counts.groups_requested,
    }

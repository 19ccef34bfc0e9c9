"""Families of prompt data: slices, shuffling, the cursor and what a restart keeps."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.reader import parse_path
from slime_events.loop.prompts.source import PromptSource
from slime_events.plugins.loader import load_function
from slime_events.plugins.sample import Sample
from tests.conformance import described
from tests.conformance.case import Case, UnknownShape

HOME = "slime.rollout.data_source"


def _prompts(folder: str, rows: int) -> str:
    """A file of the prompts p0, p1, ... and one line that is no JSON, which is no row."""
    path = Path(folder) / "prompts.jsonl"
    lines = [json.dumps({"input": f"p{row}"}) for row in range(rows)]
    path.write_text("\n".join([*lines[:2], "{broken", *lines[2:]]) + "\n")
    return str(path)


def path_slice(case: Case) -> Any:
    path, rows = parse_path(case.input["path"])
    return [path, None if rows is None else [rows.start, rows.stop]]


def shuffle(case: Case) -> Any:
    given = case.input
    with tempfile.TemporaryDirectory() as folder:
        data = DataSettings(prompt_data=_prompts(folder, given["n"]), rollout_shuffle=True)
        rows = PromptSource(data, given["rollout_seed"]).take(given["epoch_id"] * given["n"], given["n"])
    return [row.text for row in rows]


def data_source(case: Case) -> Any:
    """Calls on slime's class that the symbol names, each with what is there before and after it."""
    given = case.input
    name = "RolloutDataSourceWithBuffer" if "Buffer" in case.symbol else "RolloutDataSource"
    with tempfile.TemporaryDirectory() as folder:
        args = SimpleNamespace(
            prompt_data=_prompts(folder, given.get("dataset_len", 5)),
            n_samples_per_prompt=given.get("n_samples_per_prompt", 2),
            rollout_seed=given.get("rollout_seed", 42),
            rollout_shuffle=given.get("rollout_shuffle", given.get("shuffle", False)),
            buffer_filter_path=given.get("buffer_filter_path"),
            save=folder,
            load=folder,
        )
        return _Played(load_function(f"{HOME}.{name}"), args).play(_calls(given))


def _calls(given: dict[str, Any]) -> Iterable[described.Call]:
    """`steps` in words, or how many groups to `ask` for, once or several times, behind `buffer` groups."""
    if "steps" in given:
        return described.calls(given["steps"])
    asked = next((given[name] for name in ("ask", "asks", "calls", "num_samples", "get") if name in given), None)
    if asked is None:
        raise UnknownShape(f"no calls in {sorted(given)}")
    there = next((value for name, value in given.items() if name.startswith("buffer") and isinstance(value, int)), 0)
    gets = [described.Call("get", number) for number in (asked if isinstance(asked, list) else [asked])]
    return [described.Call("add", there), *gets] if there else gets


class _Played:
    """A data source, and what came of the calls on it."""

    def __init__(self, make: Any, args: SimpleNamespace) -> None:
        self.make, self.args = make, args
        self.source = make(args)
        self.last: list[list[Sample]] = []
        self.counts: list[int] = []
        self.held: dict[str, int] = {}
        self.given_back: list[list[Sample]] = []

    def play(self, calls: Iterable[described.Call]) -> dict[str, Any]:
        """Make the calls; what they gave, by slime's names."""
        for call in calls:
            self._call(call)
        names = ("sample_offset", "epoch_id", "sample_index", "sample_group_index")
        fresh = [group for group in self.last if not any(group is one for one in self.given_back)]
        return {
            "from_dataset": len(fresh),
            "from_buffer": len(self.last) - len(fresh),
            "n_returned": len(self.last),
            "returned": self.counts,
            "prompts": [group[0].prompt for group in self.last],
            "group_indices": [group[0].group_index for group in self.last],
            "sample_indices": [[sample.index for sample in group] for group in self.last],
            "len": len(self.source),
            "buffer": len(getattr(self.source, "buffer", ())),
            "buffer_length": len(getattr(self.source, "buffer", ())),
            **{name: getattr(self.source, name) for name in names},
            **self.held,
        }

    def _call(self, call: described.Call) -> None:
        match call.name:
            case "get":
                self.last = self.source.get_samples(call.number)
                self.counts.append(len(self.last))
            case "add":
                size = self.args.n_samples_per_prompt
                made = [[Sample(prompt=f"b{group}") for _ in range(size)] for group in range(call.number)]
                self.given_back = self.last[: call.number] if len(self.last) >= call.number else made
                self.source.add_samples(self.given_back)
            case "save":
                self.held["buffer_before"] = len(getattr(self.source, "buffer", ()))
                self.source.save(call.number)
            case "new":
                self.source = self.make(self.args)
            case "load":
                self.source.load(call.number)
                self.held["buffer_after_load"] = len(getattr(self.source, "buffer", ()))

"""Families of prompt data: slices, shuffling, the cursor and what a restart keeps."""

from __future__ import annotations

import json
import re
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
from tests.harness.conformance import described
from tests.harness.conformance.case import Case, UnknownShape

HOME = "slime.rollout.data_source"


def _prompts(folder: str, rows: int) -> str:
    """A file of the prompts p0, p1, ... and one line without JSON, which is skipped."""
    path = Path(folder) / "prompts.jsonl"
    lines = [json.dumps({"input": f"p{row}"}) for row in range(rows)]
    path.write_text("\n".join([*lines[:2], "{broken", *lines[2:]]) + "\n")
    return str(path)


def path_slice(case: Case) -> Any:
    path, rows = parse_path(case.input["path"])
    return [path, None if rows is None else [rows.start, rows.stop]]


def shuffle(case: Case) -> Any:
    params = case.input
    with tempfile.TemporaryDirectory() as folder:
        data = DataSettings(prompt_data=_prompts(folder, params["n"]), rollout_shuffle=True)
        rows = PromptSource(data, params.get("rollout_seed", 42)).take(
            params.get("epoch_id", 0) * params["n"], params["n"]
        )
    return [row.text for row in rows]


def data_source(case: Case) -> Any:
    """Calls on slime's class that the symbol names, each with what is there before and after it.

    An outcome of every call is a list with an entry per call; an outcome of a single call is a value.
    """
    params = case.input
    name = "RolloutDataSourceWithBuffer" if "Buffer" in case.symbol else "RolloutDataSource"
    rows = _first(params, "dataset_len", "dataset_size", "dataset", "n_rows", "n_prompts", "num_prompts", default=5)
    with tempfile.TemporaryDirectory() as folder:
        args = SimpleNamespace(
            prompt_data=_prompts(folder, len(rows) if isinstance(rows, list) else rows),
            n_samples_per_prompt=_first(params, "n_samples_per_prompt", "n_samples", "group_size", default=2),
            rollout_seed=_first(params, "rollout_seed", "seed", default=42),
            rollout_shuffle=_first(params, "rollout_shuffle", "shuffle", default=False),
            buffer_filter_path=params.get("buffer_filter_path"),
            save=folder,
            load=folder,
        )
        return _Played(load_function(f"{HOME}.{name}"), args).play(calls_of(params), case.expected)


def _first(params: dict[str, Any], *names: str, default: Any) -> Any:
    """Return the value of the first of these names that exists."""
    return next((params[name] for name in names if name in params), default)


_NO_CALLS = (
    "dataset",
    "scenario",
    "n_samples",
    "n_prompts",
    "n_rows",
    "num_prompts",
    "rollout",
    "group_size",
    "seed",
    "buffer_f",
)
_TIMES = ("times", "repeat", "n_calls", "num_calls")
_ASKS = re.compile("ask|get|call|draw|request|num|^n$|first|second|third|count|round|step|op|then|again")


def calls_of(params: dict[str, Any]) -> list[described.Call]:
    """`steps` in words, or how many groups to `ask` for, once or several times, behind `buffer` groups."""
    times = _first(params, *_TIMES, default=1)
    there = next((value for name, value in params.items() if name.startswith("buffer") and isinstance(value, int)), 0)
    requests = list[described.Call]()
    for name, value in params.items():
        if name in _TIMES or name.startswith(_NO_CALLS) or isinstance(value, bool | None) or not _ASKS.search(name):
            continue
        if not isinstance(value, str) or described.is_call(value):
            requests += described.calls([value] if isinstance(value, int | dict) else value)
    if not requests:
        raise UnknownShape(f"no calls in {sorted(params)}")
    requests *= times
    return [described.Call("add", there), *requests] if there else requests


class _Played:
    """A data source, and the results of the calls on it."""

    def __init__(self, make: Any, args: SimpleNamespace) -> None:
        self.make, self.args = make, args
        self.source = make(args)
        self.last: list[list[Sample]] = []
        self.drawn: list[dict[str, Any]] = []
        self.held: dict[str, int] = {}
        self.given_back: list[list[Sample]] = []

    def play(self, calls: Iterable[described.Call], like: Any) -> dict[str, Any]:
        """Make the calls; what they gave, by slime's names. like: an outcome, whose shape says of which call."""
        for call in calls:
            self._call(call)
        likes = like if isinstance(like, dict) else {}
        each = {name: self._of_each(name, likes[name]) for name in likes if self.drawn}
        return self._now() | {name: value for name, value in each.items() if value is not None}

    def _of_each(self, name: str, like: Any) -> Any:
        """Return the value of a name that is about all calls, or the first, second or third; None for other names."""
        ordinal = next((place for place, word in enumerate(_ORDINALS) if re.search(word, name)), None)
        if ordinal is not None and ordinal < len(self.drawn):
            return _as(self.drawn[ordinal], like)
        of_calls = [drawn.get(name) for drawn in self.drawn]
        if not isinstance(like, list) or (len(of_calls) < 2 and name in self.drawn[-1]):
            return None
        if name not in self.drawn[-1]:
            return [_as(drawn, shape) for drawn, shape in zip(self.drawn, like, strict=False)]
        if _depth(like) > _depth(of_calls[-1]):
            return of_calls
        whole = [value for part in of_calls if isinstance(part, list) for value in part]
        return whole if len(like) == len(whole) else None

    def _now(self) -> dict[str, Any]:
        """Return the result of the last call, and the state after it."""
        names = ("sample_offset", "epoch_id", "sample_index", "sample_group_index")
        fresh = [group for group in self.last if not any(group is returned for returned in self.given_back)]
        return {
            "from_dataset": len(fresh),
            "from_buffer": len(self.last) - len(fresh),
            "n_returned": len(self.last),
            "returned": [*(drawn["n_returned"] for drawn in self.drawn)],
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
                self.drawn.append({"n_returned": len(self.last)})
                self.drawn[-1] = self._now()
            case "add":
                size = self.args.n_samples_per_prompt
                groups = [[Sample(prompt=f"b{group}") for _ in range(size)] for group in range(call.number)]
                self.given_back = self.last[: call.number] if len(self.last) >= call.number else groups
                self.source.add_samples(self.given_back)
            case "save":
                self.held["buffer_before"] = len(getattr(self.source, "buffer", ()))
                self.source.save(call.number)
            case "new":
                self.source = self.make(self.args)
            case "load":
                self.source.load(call.number)
                self.held["buffer_after_load"] = len(getattr(self.source, "buffer", ()))


_ORDINALS = (
    "first|(?<![0-9])1(?![0-9])|(?<![a-z])a$",
    "second|again|(?<![0-9])2(?![0-9])|(?<![a-z])b$",
    "third|(?<![0-9])3(?![0-9])",
)


def _depth(value: Any) -> int:
    """Return the depth of nested lists."""
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _as(drawn: dict[str, Any], like: Any) -> Any:
    """Return one call's result in the shape of an outcome: a count, prompts, indices, or all of them by name."""
    if isinstance(like, dict):
        return drawn
    if not isinstance(like, list):
        return drawn["n_returned"]
    inner = like[0] if like else ""
    if isinstance(inner, list):
        texts = inner and isinstance(inner[0], str)
        each = zip(drawn["prompts"], drawn["sample_indices"], strict=True)
        return [[prompt] * len(indices) for prompt, indices in each] if texts else drawn["sample_indices"]
    if isinstance(inner, str):
        return drawn["prompts"]
    indices = [index for group in drawn["sample_indices"] for index in group]
    return indices if len(like) == len(indices) != len(drawn["prompts"]) else drawn["group_indices"]

"""`OwnSource`: prompts of a user's own data source (slime's `--data-source-path`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.errors import PlugPointError
from schemas.ids import TRAIN
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from slime_events.core.config.data import DataSettings
from slime_events.loop.conductor.submitted import submitted
from slime_events.loop.prompts.prompt import Tokenizer, make_prompt
from slime_events.loop.prompts.row import Problem
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import load_function
from slime_events.plugins.sample import Sample

Prompted = PromptSubmitted | PromptRejected


class OwnSource:
    """A user's class, made anew with `(args)`. Where it stands is the cursor, so that it may be asked again: what was
    drawn before a restart is drawn once more and put aside.
    """

    def __init__(self, data: DataSettings, view: ArgsView, tokenizer: Tokenizer, max_prompt_len: int | None) -> None:
        assert data.data_source_path is not None
        self.path, self._data = data.data_source_path, data
        self._tokenizer, self._max_prompt_len = tokenizer, max_prompt_len
        make = load_function(data.data_source_path)
        self._source = self._call("made", lambda: make(view))
        self._given = 0
        self._kept: dict[int, Sample] = {}
        self.position = 0
        """Of the log, up to which it was read."""

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """The next `count` usable prompts, or as many as it has now. Raises PlugPointError where it is broken."""
        offset = cursors.get(self.path, 0)
        self._kept = {place: sample for place, sample in self._kept.items() if place >= offset}
        taken: list[Prompted] = []
        while count > 0 and self._fill(offset, count):
            prompted = self._prompted(self._kept[offset], offset)
            taken.append(prompted)
            count -= isinstance(prompted, PromptSubmitted)
            offset += 1
        return taken

    def _fill(self, offset: int, count: int) -> bool:
        """Whether the prompt at `offset` is there, after as many were asked for as it takes."""
        while self._given <= offset:
            groups = self._call("asked for samples", lambda: list(self._source.get_samples(max(count, 1))))
            if not groups:
                return False
            for group in groups:
                if not isinstance(group, list) or not group or not isinstance(group[0], Sample):
                    raise PlugPointError(f"{self.path}: get_samples has to return a list of groups, lists of samples")
                if self._given >= offset:
                    self._kept[self._given] = group[0]
                self._given += 1
        return offset in self._kept

    def _prompted(self, sample: Sample, offset: int) -> Prompted:
        source = Source(path=self.path, row=offset, offset=offset, seen=max(1, self.position))
        fields = {"input": sample.prompt, "label": sample.label, "metadata": sample.metadata}
        settings = DataSettings(
            input_key="input",
            label_key="label",
            apply_chat_template=not isinstance(sample.prompt, str),  # a text is what the model sees, as in slime
            apply_chat_template_kwargs=self._data.apply_chat_template_kwargs,
        )
        made = make_prompt(fields, settings, self._tokenizer, self._max_prompt_len)
        if isinstance(made, Problem):
            return PromptRejected(source=source, reason=f"{made.reason.value}: {made.message}", dataset=TRAIN)
        return submitted(made, source.draw, source)

    def _call(self, doing: str, call: Any) -> Any:
        try:
            return call()
        except Exception as error:
            raise PlugPointError(f"{self.path} raised {type(error).__name__} when {doing}: {error}") from error

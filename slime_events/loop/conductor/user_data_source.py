"""`UserDataSource`: prompts from a user's data source (slime's `--data-source-path`)."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from schemas.errors import PlugPointError
from schemas.prompts import PromptSubmitted, Source
from schemas.text import message_text
from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.prompt import Prompted, draw_prompt
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import load_function, place_of
from slime_events.plugins.sample import Sample
from slime_events.plugins.tokenizer import TokenizerSource
from storage.log import Recorded


class UserDataSource:
    """An instance of a user's class, made with `(args)`. The cursor is the position in it: after a restart the prompts
    drawn before are drawn again and skipped. agents: they make the rollouts, and no function does.
    """

    def __init__(
        self,
        data: DataSettings,
        view: ArgsView,
        tokenizer: TokenizerSource,
        max_prompt_len: int | None,
        *,
        agents: bool = False,
    ) -> None:
        assert data.data_source_path is not None
        self.path, self._data, self._agents = data.data_source_path, data, agents
        self._tokenizer, self._max_prompt_len = tokenizer, max_prompt_len
        make = load_function(data.data_source_path)
        self._source = self._call("made", lambda: make(view))
        if hasattr(self._source, "load"):
            self._call("asked to load", lambda: self._source.load(-1))
        self._given = 0
        self._kept: dict[int, Sample] = {}
        self.position = 0
        """Position up to which the log was read."""

    def observe(self, recorded: Recorded) -> None:
        """Note how far the log was read."""
        self.position = recorded.position

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """The next `count` usable prompts, or as many as it has now. Raises PlugPointError where it is broken."""
        offset = cursors.get(self.path, 0)
        self._kept = {place: sample for place, sample in self._kept.items() if place >= offset}
        taken: list[Prompted] = []
        while count > 0 and self._fill(offset, count):
            sample, data = self._kept[offset], self._data
            if kwargs := sample.apply_chat_template_kwargs:
                data = replace(data, apply_chat_template_kwargs={**data.apply_chat_template_kwargs, **kwargs})
            source = Source(path=self.path, row=offset, offset=offset, seen=max(1, self.position))
            fields = {"input": sample.prompt, "label": sample.label, "metadata": sample.metadata}
            prompted = draw_prompt(fields, data, self._tokenizer, self._max_prompt_len, source)
            if isinstance(prompted, PromptSubmitted):
                own = {name: getattr(sample, name) or "" for name in ("generate_function_path", "custom_rm_path")}
                prompted = replace(prompted, **own)
            taken.append(prompted)
            count -= isinstance(prompted, PromptSubmitted)
            offset += 1
        return taken

    def _fill(self, offset: int, count: int) -> bool:
        """Whether the source has a prompt at `offset`; asks it for as many as needed."""
        while self._given <= offset:
            groups = self._call("asked for samples", lambda: list(self._source.get_samples(max(count, 1))))
            if not groups:
                return False
            for group in groups:
                if not isinstance(group, list) or not group or not isinstance(group[0], Sample):
                    raise PlugPointError(f"{self.path}: get_samples has to return a list of groups, lists of samples")
                if differing := [name for name in _OF_A_GROUP if any(_differ(name, one, group[0]) for one in group)]:
                    raise PlugPointError(
                        f"{self.path}: the samples of group {self._given} differ in `{differing[0]}`, and a group has "
                        "one prompt: give each its own, or let the generate function tell them apart by sample.index"
                    )
                if self._agents and (own := group[0].generate_function_path):
                    raise PlugPointError(
                        f"{self.path}: group {self._given} names the generate_function_path {own}, and this run's "
                        "rollouts are made by --agents: leave one of them out"
                    )
                if self._given >= offset:
                    self._kept[self._given] = group[0]
                self._given += 1
        return offset in self._kept

    def _call(self, doing: str, call: Any) -> Any:
        try:
            return call()
        except BaseException as error:
            where = place_of(error)
            raise PlugPointError(
                f"{self.path} raised {type(error).__name__} when {doing}: {message_text(error)}{where}"
            ) from error


_OF_A_GROUP = ("prompt", "label", "metadata", "generate_function_path", "custom_rm_path", "apply_chat_template_kwargs")
"""What a run takes from a data source's samples."""


def _differ(name: str, one: Sample, other: Sample) -> bool:
    return bool(getattr(one, name) != getattr(other, name))


def source_length(data: DataSettings, view: ArgsView) -> int:
    """Prompts of one pass, as the source says. Raises what making it raises, PlugPointError where it does not know."""
    path = data.data_source_path or ""
    make = load_function(path)
    try:
        length = len(make(view))
    except BaseException as error:
        raise PlugPointError(
            f"{path} raised {type(error).__name__} when asked for its length: {message_text(error)}"
        ) from error
    if length < 1:
        raise PlugPointError(f"{path} has no length: give --num-rollout in the place of --num-epoch")
    return length

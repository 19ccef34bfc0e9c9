"""`UserDataSource`: prompts from a user's data source (slime's `--data-source-path`)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from msgspec.structs import replace

from schemas.arrays import EMPTY_TOKENS, INLINE_LIMIT
from schemas.codec import encode_event
from schemas.errors import EventTooLarge, PlugPointError, reason_of
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from schemas.text import message_text
from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.prompt import Prompted, draw_prompt
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import load_function, place_of
from slime_events.plugins.sample import Sample, carried, own_attributes
from slime_events.plugins.tokenizer import TokenizerSource
from storage.log import HEADER_BYTES, MAX_EVENT_BYTES, Recorded

T = TypeVar("T")
MOST_GROUPS = 100_000
"""Most groups that a data source may return in a call."""


class UserDataSource:
    """An instance of a user's class, made with `(args)`.

    The cursor is its number of groups: after a restart, the groups drawn before are drawn again and skipped. agents:
    agents make the rollouts, so no sample may name a generate function.
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
        self._count = 0
        self._kept: dict[int, Sample] = {}
        self.position = 0
        """Position up to which the log was read."""

    def observe(self, recorded: Recorded) -> None:
        """Note how far the log was read."""
        self.position = recorded.position

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """Return the next `count` usable prompts, or fewer if it has no more now. Raises PlugPointError."""
        offset = cursors.get(self.path, 0)
        self._kept = {place: sample for place, sample in self._kept.items() if place >= offset}
        taken: list[Prompted] = []
        while count > 0 and self._fill(offset, count):
            source = Source(path=self.path, row=offset, offset=offset, seen=max(1, self.position))
            try:
                prompted = self._prompted(self._kept[offset], source)
            except BaseException as error:  # a user's code may raise anything: only this sample is lost
                prompted = PromptRejected(source=source, reason=reason_of(error))
            taken.append(prompted)
            count -= isinstance(prompted, PromptSubmitted)
            offset += 1
        return taken

    def _prompted(self, sample: Sample, source: Source) -> Prompted:
        """Return the prompt of a sample. Raises PlugPointError, and EventTooLarge if the log cannot store it."""
        data = self._data
        if kwargs := carried(sample.apply_chat_template_kwargs, "sample.apply_chat_template_kwargs"):
            data = replace(data, apply_chat_template_kwargs={**data.apply_chat_template_kwargs, **kwargs})
        values = {"input": sample.prompt, "label": sample.label, "metadata": sample.metadata}
        fields = {name: carried(value, f"sample.{_NAMES.get(name, name)}") for name, value in values.items()}
        prompted = draw_prompt(fields, data, self._tokenizer, self._max_prompt_len, source)
        if isinstance(prompted, PromptSubmitted):
            paths = {name: getattr(sample, name) or "" for name in ("generate_function_path", "custom_rm_path")}
            prompted = replace(prompted, **paths, attributes=carried(own_attributes(sample), "vars(sample)"))
            size = len(encode_event(replace(prompted, tokens=EMPTY_TOKENS)))
            if size > PROMPT_BYTES:
                raise EventTooLarge(f"the prompt and what its sample has are {size} bytes, of {PROMPT_BYTES}")
        return prompted

    def _fill(self, offset: int, count: int) -> bool:
        """Return whether the source has a group at `offset`, after reading as many as needed."""
        while self._count <= offset:
            groups = self._call("asked for samples", lambda: self._next_groups(max(count, 1)))
            if not groups:
                return False
            if len(groups) > MOST_GROUPS:
                raise PlugPointError(f"{self.path}: get_samples returned more than {MOST_GROUPS:,} groups at once")
            for group in groups:
                if not isinstance(group, list) or not group or not isinstance(group[0], Sample):
                    raise PlugPointError(
                        f"{self.path}: get_samples must return a list of groups, which are lists of samples"
                    )
                differing = self._call("asked for samples", partial(_differing, group))
                if differing:
                    raise PlugPointError(
                        f"{self.path}: the samples of group {self._count} differ in `{differing[0]}`, and a group has "
                        "one prompt: give each its own, or let the generate function tell them apart by sample.index"
                    )
                if self._agents and (own := group[0].generate_function_path):
                    raise PlugPointError(
                        f"{self.path}: group {self._count} names the generate_function_path {own}, and this run's "
                        "rollouts are made by --agents: leave one of them out"
                    )
                if self._count >= offset:
                    self._kept[self._count] = group[0]
                self._count += 1
        return offset in self._kept

    def _next_groups(self, count: int) -> list[Any]:
        return list(islice(self._source.get_samples(count), MOST_GROUPS + 1))  # a generator may be endless

    def _call(self, doing: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except BaseException as error:  # a user's code may raise anything
            where = place_of(error)
            raise PlugPointError(
                f"{self.path} raised {type(error).__name__} when {doing}: {message_text(error)}{where}"
            ) from error


PROMPT_BYTES = MAX_EVENT_BYTES - INLINE_LIMIT - HEADER_BYTES
"""Most bytes of a prompt without its tokens: an event without tokens and headers."""
_NAMES = {"input": "prompt"}
_OF_A_GROUP = ("prompt", "label", "metadata", "generate_function_path", "custom_rm_path", "apply_chat_template_kwargs")
"""Attributes that a run reads from a data source's samples, besides the samples' own ones."""


def _differing(group: Sequence[Sample]) -> list[str]:
    """Return the names of attributes that differ between the samples of a group."""
    names = dict.fromkeys([*_OF_A_GROUP, *(name for sample in group for name in own_attributes(sample))])
    return [name for name in names if any(_differ(name, sample, group[0]) for sample in group)]


def _differ(name: str, sample: Sample, other: Sample) -> bool:
    mine, others = getattr(sample, name, None), getattr(other, name, None)
    return mine is not others and bool(mine != others)


def source_length(data: DataSettings, view: ArgsView) -> int:
    """Return the prompts in a pass of the source. Raises its constructor's errors, PlugPointError without a length."""
    path = data.data_source_path or ""
    make = load_function(path)
    try:
        length = len(make(view))
    except BaseException as error:  # a user's code may raise anything
        raise PlugPointError(
            f"{path} raised {type(error).__name__} when asked for its length: {message_text(error)}"
        ) from error
    if length < 1:
        raise PlugPointError(f"{path} has no length: give --num-rollout instead of --num-epoch")
    return length

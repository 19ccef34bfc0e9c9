"""`OutsidePrompts`: producers' prompts as events of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from schemas.errors import SlimeEventsError, UngradableSample
from schemas.ids import INBOX, inbox_group_id
from schemas.inbox import InboxPrompt
from schemas.prompts import PromptSubmitted, Source
from slime_events.core.checkpoint.context import LONG_CONTEXT, context_of
from slime_events.core.config.data import DataSettings
from slime_events.core.config.per_source import NATS
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.prompts.inbox_message import WrongField
from slime_events.loop.prompts.prompt import BadReason, Problem, Prompt, make_prompts, submitted
from slime_events.plugins.rewards.registry import label_check, metadata_check
from slime_events.plugins.tokenizer import TokenizerSource


class OutsidePrompts:
    """Makes the events of producers' prompts.

    check_grader: check of their metadata, see `metadata_check`; None: they may name any grader. check_label: check of
    their metadata and label, see `label_check`; None: they need no label.
    """

    def __init__(
        self,
        data: DataSettings,
        tokenizer: TokenizerSource,
        max_prompt_len: int | None,
        check_grader: Callable[[Any], None] | None = None,
        check_label: Callable[[Any, Any], None] | None = None,
    ) -> None:
        self.tokenizer, self._max_prompt_len = tokenizer, max_prompt_len
        self._check_grader, self._check_label = check_grader, check_label
        self._data = data
        self._read_as = {is_chat: self._settings(is_chat=is_chat) for is_chat in (False, True)}

    @classmethod
    def of(cls, settings: TrainSettings, tokenizer: TokenizerSource) -> OutsidePrompts:
        """Return the maker of these settings."""
        longest = settings.rollout.longest_prompt or context_of(settings) or LONG_CONTEXT
        return cls(settings.data, tokenizer, longest, metadata_check(settings), label_check(settings))

    def check_metadata(self, metadata: object) -> None:
        """Raise WrongField if a sample with this metadata cannot be graded."""
        if self._check_grader is None:
            return
        try:
            self._check_grader(metadata)
        except UngradableSample as error:
            raise _wrong("metadata", BadReason.UNGRADABLE, error) from error
        except SlimeEventsError as error:
            raise _wrong("metadata.rm_type", BadReason.UNGRADABLE, error) from error

    def submitted(self, prompt: InboxPrompt, sender: str = "", *, is_graded: bool = False) -> PromptSubmitted:
        """Return the event of a producer's prompt. Raises WrongField.

        The group id depends only on its key and the sender. is_graded: its samples come with their rewards.
        """
        (result,) = self.submitted_all([prompt], sender, is_graded=is_graded)
        if isinstance(result, WrongField):
            raise result
        return result

    def submitted_all(
        self, prompts: Sequence[InboxPrompt], sender: str, *, is_graded: bool = False
    ) -> list[PromptSubmitted | WrongField]:
        """Return the event of each prompt, or its error. Tokenises all prompts together."""
        wrong = {n: error for n, each in enumerate(prompts) if (error := self._wrong_in(each, is_graded=is_graded))}
        inputs = [self._inputs(each) for n, each in enumerate(prompts) if n not in wrong]
        results = iter(make_prompts(inputs, self.tokenizer, self._max_prompt_len))
        return [wrong.get(n) or _event(each, next(results), sender) for n, each in enumerate(prompts)]

    def _wrong_in(self, prompt: InboxPrompt, *, is_graded: bool) -> WrongField | None:
        """Return an error that can be found without tokenising the prompt."""
        if prompt.rendered and not isinstance(prompt.prompt, str):
            return _wrong("prompt", BadReason.WRONG_TYPE, "a rendered prompt must be a text, not chat messages")
        try:
            if not is_graded:
                self.check_metadata(prompt.metadata)
                if self._check_label is not None:
                    self._check_label(prompt.metadata, prompt.label)
        except UngradableSample as error:
            return _wrong("label", BadReason.UNGRADABLE, error)
        except WrongField as error:
            return error
        return None

    def _settings(self, *, is_chat: bool) -> DataSettings:
        return DataSettings(
            input_key="prompt",
            tool_key="tools",
            apply_chat_template=is_chat,
            apply_chat_template_kwargs=self._data.apply_chat_template_kwargs,
        )

    def _inputs(self, prompt: InboxPrompt) -> tuple[dict[str, Any], DataSettings]:
        """Return the prompt as fields of a line with a producer's names, and the settings to read them with."""
        is_chat = not isinstance(prompt.prompt, str) or (self._data.apply_chat_template and not prompt.rendered)
        return {"prompt": prompt.prompt, "tools": prompt.tools}, self._read_as[is_chat]


def _wrong(field: str, reason: BadReason, why: object) -> WrongField:
    return WrongField(field, f"{reason.value}: {why}")


def _event(prompt: InboxPrompt, result: Prompt | Problem, sender: str) -> PromptSubmitted | WrongField:
    if isinstance(result, Problem):
        return _wrong("prompt", result.reason, result.message)
    return submitted(
        result,
        group=inbox_group_id(prompt.key, sender),
        source=Source(path=INBOX, key=prompt.key, sender=sender, content=prompt.content()),
        dataset=INBOX,
        label=prompt.label,
        metadata=prompt.metadata,
        tools=prompt.tools,
        share=sender or NATS,
        priority=prompt.priority,
    )

"""A prompt: the model's input, and where it came from."""

from typing import Any

import msgspec

from schemas.arrays import Array
from schemas.event import Event, Purpose
from schemas.ids import TRAIN, bad_line_id, draw_id
from schemas.recorded import Recalled

Label = str | Any | None
"""A text, as most labels are, or any other JSON value."""


def as_text(label: Any) -> str:
    """A label as one text: as it is, or else its JSON; empty for None."""
    if label is None or isinstance(label, str):
        return label or ""
    return msgspec.json.encode(label, enc_hook=str).decode()


class Source(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Where a prompt came from. path: file URL, or `inbox`. row: 0-based usable row of the file; line: 1-based line
    of it. epoch: pass over it.

    offset: prompts drawn from this source before this one, over all epochs; the source's cursor is the fold of these.
    key: the sender's idempotency key, for the inbox; of a prompt that is drawn again from an archive, its group there.
    sender: in whose name a gateway brought it. content: sha256 (hex) of what a producer sent under the key.
    seen: of a prompt that a sampler drew by the log's statistics, the position up to which the log was read.
    """

    path: str
    row: int = 0
    epoch: int = 0
    offset: int = 0
    key: str = ""
    line: int = 0
    seen: int = 0
    sender: str = ""
    content: str = ""

    @property
    def draw(self) -> str:
        """The id of a sampler's draw. The prompt drawn may depend on the sampler's state; the id does not."""
        return draw_id(self.offset, again=bool(self.key))


class PromptSubmitted(Event, frozen=True, kw_only=True, tag="prompt.submitted"):
    """The prompt source (files), the inbox (outside producers) or the conductor (evaluation), once per group.

    group: id of the group of samples that will answer it. text: as the model sees it, after the chat template.
    tokens: int32 [prompt]. messages: the chat it was made from. label, metadata, tools: as given, JSON values;
    metadata is an object unless a producer or a file has something else. chat: the file holds messages, the run has no
    --apply-chat-template, so that functions see the messages; text and tokens are of the model's template all the same.
    dataset: `train`, `inbox`, or the evaluation's name. version: the weight version that an evaluation is of.
    recalled: for a group that reuses recorded rollouts of another run, with the prompt that they were made of.
    generate_function_path: makes its rollouts, in the place of the run's own; as a data source or a data set names it.
    custom_rm_path: grades them, likewise. share: of a prompt from outside, the source to whose share of the batches it
    counts (`--source-share`); priority: among those of it that wait. attributes: what a data source set on its sample
    that is no field of slime's `Sample`, JSON values by attribute; functions see it.
    """

    group: str
    text: str
    tokens: Array
    source: Source
    purpose: Purpose = Purpose.TRAIN
    dataset: str = TRAIN
    version: int | None = None
    messages: list[dict[str, Any]] | None = None
    label: Label = None
    metadata: Any = {}
    tools: list[dict[str, Any]] | None = None
    recalled: Recalled | None = None
    chat: bool = False
    generate_function_path: str = ""
    custom_rm_path: str = ""
    share: str = ""
    priority: int = 0
    attributes: dict[str, Any] = {}


class PromptOffered(Event, frozen=True, kw_only=True, tag="prompt.offered"):
    """A gateway, or `slime-events produce`, for a prompt from outside that comes while nobody conducts the run. Whoever
    conducts it next takes it in: as `prompt.submitted`, or as `prompt.rejected` with the reason.

    group: as it will be. The others: as the producer gave them (`InboxPrompt`), sender: in whose name.
    """

    group: str
    key: str
    prompt: str | list[dict[str, Any]]
    sender: str = ""
    label: Label = None
    metadata: Any = {}
    tools: list[dict[str, Any]] | None = None
    rendered: bool = False
    priority: int = 0


class PromptWanted(Event, frozen=True, kw_only=True, tag="prompt.wanted"):
    """The process of a rollout function, where the function asks its data source for more groups than are there.

    total: groups that are to be drawn, since the beginning of the run; the conductor draws them.
    """

    total: int

    def entity(self) -> str:
        return f"wanted-{self.total}"


class PromptRejected(Event, frozen=True, kw_only=True, tag="prompt.rejected"):
    """The prompt source, for a line that cannot be used; the others go on. reason: one sentence.

    group: of a prompt that was offered from outside.
    """

    source: Source
    reason: str
    dataset: str = TRAIN
    group: str = ""

    def entity(self) -> str:
        if self.group:
            return self.group
        if self.source.seen:
            return self.source.draw
        return bad_line_id(self.dataset, self.source.epoch, self.source.line)

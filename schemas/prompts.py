"""A prompt: the model's input and its origin."""

from typing import Annotated, Any

import msgspec

from schemas.arrays import Array
from schemas.doc import doc
from schemas.event import Event, Purpose
from schemas.ids import TRAIN, bad_line_id, draw_id
from schemas.recorded import Recalled

Label = str | Any | None
"""A text, or any other JSON value."""


def as_text(label: object) -> str:
    """Return a label as text: a text unchanged, another value as JSON, None as an empty text."""
    if label is None or isinstance(label, str):
        return label or ""
    return msgspec.json.encode(label, enc_hook=str).decode()


class Source(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Origin of a prompt. The source's cursor is the fold of these events."""

    path: Annotated[str, doc("File URL, or `inbox`.")]
    row: Annotated[int, doc("Usable row of the file, from 0.")] = 0
    epoch: Annotated[int, doc("Pass over the file, from 0.")] = 0
    offset: Annotated[int, doc("Prompts drawn from this source before this one, over all epochs.")] = 0
    key: Annotated[
        str, doc("Inbox: the sender's idempotency key. Prompt drawn again from an archive: its group in that archive.")
    ] = ""
    line: Annotated[int, doc("Line of the file, from 1.")] = 0
    seen: Annotated[
        int, doc("Log position up to which a sampler had read the log when it drew the prompt; 0 without a sampler.")
    ] = 0
    sender: Annotated[str, doc("Producer on whose behalf a gateway submitted the prompt.")] = ""
    content: Annotated[str, doc("sha256 (hex) of the content that a producer sent under the key.")] = ""

    @property
    def draw(self) -> str:
        """Id of a sampler's draw. The drawn prompt may depend on the sampler's state; the id does not."""
        return draw_id(self.offset, again=bool(self.key))


class PromptSubmitted(Event, frozen=True, kw_only=True, tag="prompt.submitted"):
    """Appended once per group: by the prompt source (files), the inbox (producers) or the conductor (evaluation)."""

    group: Annotated[str, doc("Id of the group of samples that answer the prompt.")]
    text: Annotated[str, doc("Prompt after the chat template, as the model reads it.")]
    tokens: Annotated[Array, doc("int32 [prompt]: token ids of `text`.")]
    source: Annotated[Source, doc("Origin of the prompt.")]
    purpose: Annotated[Purpose, doc("Use of the rollouts.")] = Purpose.TRAIN
    dataset: Annotated[str, doc("`train`, `inbox`, or the name of the evaluation.")] = TRAIN
    version: Annotated[int | None, doc("Weight version to evaluate; None in training.")] = None
    messages: Annotated[list[dict[str, Any]] | None, doc("Chat from which `text` was made.")] = None
    label: Annotated[Label, doc("Label: a text or another JSON value.")] = None
    metadata: Annotated[Any, doc("JSON value; an object unless the producer or the file contains another type.")] = {}
    tools: Annotated[list[dict[str, Any]] | None, doc("Tool definitions, JSON.")] = None
    recalled: Annotated[
        Recalled | None, doc("Recorded rollouts of another run that the group reuses, made from the same prompt.")
    ] = None
    chat: Annotated[
        bool,
        doc(
            "Functions see the messages: the file has messages and --apply-chat-template is off. `text` and `tokens` "
            "use the model's template regardless."
        ),
    ] = False
    generate_function_path: Annotated[
        str, doc("User's function that makes the rollouts, set by a data source or data set; empty: the run's own.")
    ] = ""
    custom_rm_path: Annotated[
        str, doc("User's function that grades the rollouts, set by a data source or data set; empty: the run's own.")
    ] = ""
    share: Annotated[
        str, doc("Prompt from outside: source whose share of the batches (`--source-share`) it counts towards.")
    ] = ""
    priority: Annotated[int, doc("Priority among the waiting prompts of that source; the highest is first.")] = 0
    attributes: Annotated[
        dict[str, Any],
        doc(
            "Attributes that a data source set on slime's `Sample` beyond its fields, JSON values; functions see them."
        ),
    ] = {}


class PromptOffered(Event, frozen=True, kw_only=True, tag="prompt.offered"):
    """Appended by a gateway or `slime-events produce` for a prompt that arrives while no conductor is running.

    The next conductor takes the prompt in: as `prompt.submitted`, or as `prompt.rejected` with the reason.
    """

    group: Annotated[str, doc("Id that the group will have.")]
    key: Annotated[str, doc("The producer's idempotency key.")]
    prompt: Annotated[str | list[dict[str, Any]], doc("Text or chat messages, as in `InboxPrompt`.")]
    sender: Annotated[str, doc("Producer that sent the prompt.")] = ""
    label: Annotated[Label, doc("Label: a text or another JSON value.")] = None
    metadata: Annotated[Any, doc("JSON value.")] = {}
    tools: Annotated[list[dict[str, Any]] | None, doc("Tool definitions, JSON.")] = None
    rendered: Annotated[bool, doc("The chat template is already applied, as in `InboxPrompt`.")] = False
    priority: Annotated[int, doc("Priority among the source's waiting prompts; the highest is first.")] = 0


class PromptWanted(Event, frozen=True, kw_only=True, tag="prompt.wanted"):
    """Appended by the process of a rollout function that requests more groups than its data source has.

    The conductor draws the missing groups.
    """

    total: Annotated[int, doc("Number of groups that must have been drawn since the run began.")]

    def entity(self) -> str:
        return f"wanted-{self.total}"


class PromptRejected(Event, frozen=True, kw_only=True, tag="prompt.rejected"):
    """Appended by the prompt source for a line that it skips because the line is unusable."""

    source: Annotated[Source, doc("Origin of the line.")]
    reason: Annotated[str, doc("Why it is unusable, one sentence.")]
    dataset: Annotated[str, doc("`train`, `inbox`, or the name of the evaluation.")] = TRAIN
    group: Annotated[str, doc("Id of the group, if the prompt came from outside.")] = ""

    def entity(self) -> str:
        if self.group:
            return self.group
        if self.source.seen:
            return self.source.draw
        return bad_line_id(self.dataset, self.source.epoch, self.source.line)

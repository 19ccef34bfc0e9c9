"""The gateway's answer to producers."""

from typing import Annotated

import msgspec

from schemas.doc import doc


class TakenPrompt(msgspec.Struct, frozen=True):
    """An accepted prompt or reward."""

    key: Annotated[str, doc("The sender's key, or the sha256 of the prompt if it has no key.")]
    group: Annotated[str, doc("Group under which its fate can be queried; for a reward, the sample.")]


class LineProblem(msgspec.Struct, frozen=True):
    """Why a prompt was refused."""

    line: Annotated[int, doc("Line, from 1; in a list, the prompt's place in it.")]
    field: Annotated[str, doc("Name of the field; empty for the whole prompt.")]
    message: Annotated[str, doc("Explanation, one sentence.")]


class Submission(msgspec.Struct, omit_defaults=True):
    """Answer to prompts. Each prompt is independent: accepted prompts are in the log, on disk, even if others fail."""

    accepted: Annotated[int, doc("Number of accepted prompts.")]
    refused: Annotated[int, doc("Number of refused prompts.")]
    groups: Annotated[list[TakenPrompt], doc("Accepted prompts.")]
    errors: Annotated[list[LineProblem], doc("Refused prompts.")]
    more: Annotated[int, doc("Entries that `groups` and `errors` omit because there are too many.")] = 0
    unread: Annotated[
        int, doc("First line that was not read because too many lines before it were refused; 0 if all were read.")
    ] = 0

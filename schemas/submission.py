"""The gateway's answer to what producers send."""

import msgspec


class TakenPrompt(msgspec.Struct, frozen=True):
    """key: the sender's, or the sha256 of what was sent. group: asks what became of it; of a reward, its sample."""

    key: str
    group: str


class LineProblem(msgspec.Struct, frozen=True):
    """Why a prompt was not taken. line: from 1; of a list, the prompt's place in it. field: empty for the whole."""

    line: int
    field: str
    message: str


class Submission(msgspec.Struct, omit_defaults=True):
    """The answer to prompts. Each stands alone: those that were taken are in the log, on disk, whatever became of the
    others. more: of these and of the errors, not named since they are many. unread: lines from this one on were not
    looked at, since too many before were refused; 0 where all were.
    """

    accepted: int
    refused: int
    groups: list[TakenPrompt]
    errors: list[LineProblem]
    more: int = 0
    unread: int = 0

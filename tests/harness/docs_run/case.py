"""`Case`: how something that a page starts is started here, and how it has to end."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from tests.harness.docs_run.stage import Stage

Key = tuple[str, str]
"""A page, and the text of a start on it."""


class Parts(enum.StrEnum):
    """Parts of the product that a case runs with."""

    REAL = "real"
    """SGLang, Megatron and Ray, as the page means it."""
    SCRIPTED = "scripted"
    """A scripted engine and a trainer that counts, where neither is the point of the page."""
    NONE = "none"
    """It ends before any part starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A start of a page and its outcome. command: replaces the page's, for a file that it shows. changes: texts of the
    command, with their replacements; more: flags behind it. They shrink it and give it folders.

    says: patterns that its output has, beside the notes and errors that the page shows (not with `shown` off). steps:
    that it says it made. killed, stopped: a pattern of the output upon which it is killed, or interrupted as by Ctrl-C.
    before: what the page presumes. beside: works beside it until it ends. covers: what else of the pages it uses.
    """

    page: str
    text: str
    parts: Parts = Parts.SCRIPTED
    command: str = ""
    changes: tuple[tuple[str, str], ...] = ()
    more: str = ""
    says: tuple[str, ...] = ()
    steps: int | None = None
    code: int | None = None
    shown: bool = True
    killed: str = ""
    stopped: str = ""
    before: Callable[[Stage], None] | None = None
    beside: Callable[[Stage], None] | None = None
    covers: tuple[Key, ...] = ()

    @property
    def key(self) -> Key:
        """Key of the start in the table of cases."""
        return self.page, self.text


@dataclass(frozen=True, slots=True)
class NotStarted:
    """page, begin: all starts of this page (a name, or all below `examples/...`) whose text begins so."""

    page: str
    begin: str
    reason: str

    def holds_of(self, key: Key) -> bool:
        """Whether it is about this start."""
        page, text = key
        return (page == self.page or self.page == "*") and text.startswith(self.begin)

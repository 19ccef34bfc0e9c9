"""The command line of the tools that generate a page of `docs/`, or print it.

Each function takes the tool's docstring, which `--help` prints. Wrong words end the program with code 2, before
anything is written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def write_page(tool: str | None, text: Callable[[], str], words: Sequence[str] | None = None) -> None:
    """Write a page to the file that the command line names."""
    _page(tool, words).write_text(text(), encoding="utf-8")


def update_page(tool: str | None, text: Callable[[str], str], words: Sequence[str] | None = None) -> None:
    """Generate a part of the page that the command line names. text: returns the new page from the old one."""
    page = _page(tool, words)
    page.write_text(text(page.read_text(encoding="utf-8")), encoding="utf-8")


def print_page(tool: str | None, text: Callable[[], str], words: Sequence[str] | None = None) -> None:
    """Print a page. The command line has no words."""
    argparse.ArgumentParser(description=tool).parse_args(words)
    sys.stdout.write(text())


def _page(tool: str | None, words: Sequence[str] | None) -> Path:
    parser = argparse.ArgumentParser(description=tool)
    parser.add_argument("page", type=Path, metavar="PAGE", help="the page's file, which must exist")
    page: Path = parser.parse_args(words).page
    if not page.is_file():
        parser.error(f"{page} is not a file: give the page's path, such as docs/flags.md")
    return page

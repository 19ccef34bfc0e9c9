"""Every link on every page has a target, and every page can be reached from the README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import DOCS, PAGES, ROOT

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(
    r"`((?:schemas|storage|slime_events|actors|serve_apps|tests|benchmarks|docs|examples)/[\w/.-]*\w/?)`"
)


def _links(page: Path) -> Iterator[tuple[Path, str]]:
    """The files that a page links to, each with the heading that is named behind #."""
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in link:
            path, _, heading = link.partition("#")
            yield (page.parent / path).resolve() if path else page, heading


def _headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_leads_somewhere() -> None:
    wrong = [
        f"{page.relative_to(ROOT)}: {file.name}#{heading}"
        for page in PAGES
        for file, heading in _links(page)
        if not file.exists() or (heading and heading not in _headings(file))
    ]
    assert not wrong


def test_every_file_that_is_named_is_there() -> None:
    named = [(page, name) for page in PAGES for name in _FILE.findall(page.read_text(encoding="utf-8"))]
    assert not [f"{page.relative_to(ROOT)}: {name}" for page, name in named if not (ROOT / name).exists()]


def test_the_decisions_are_listed_by_their_titles() -> None:
    pages = sorted((DOCS / "decisions").glob("0*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages]
    listed = [f"- [{page.stem[:4]}]({page.name}): {title}" for page, title in zip(pages, titles, strict=True)]
    assert (DOCS / "decisions" / "README.md").read_text(encoding="utf-8").splitlines()[4:] == listed


def test_the_readme_leads_to_every_page_through_links() -> None:
    reached: set[Path] = set()
    ahead = {ROOT / "README.md"}
    while ahead:
        page = ahead.pop()
        reached.add(page)
        ahead |= {file for file, _ in _links(page) if file.suffix == ".md" and file.exists()} - reached
    assert set(DOCS.glob("*.md")) - reached == set()


def test_the_site_shows_every_page() -> None:
    shown = set(re.findall(r"^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert shown == {"index.md", "decisions/README.md", *(page.name for page in DOCS.glob("*.md"))}

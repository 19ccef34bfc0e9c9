"""The known names nearest to an unknown one."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Up to `count` names of `known` that are spelled like `name`, best first."""
    spellings: dict[str, str] = {}
    for one in known:
        spellings.setdefault(_plain(one), one)
    close = difflib.get_close_matches(_plain(name), spellings, n=count, cutoff=0.6)
    return tuple(spellings[one] for one in close)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean a or b?`, or nothing where no name is near."""
    names = nearest(name, known)
    return f" Did you mean {' or '.join(names)}?" if names else ""


def nearest_text(name: str, known: Iterable[str]) -> str:
    """` Nearest: a, b.`, or nothing where no name is near."""
    names = nearest(name, known)
    return f" Nearest: {', '.join(names)}." if names else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").strip("-")

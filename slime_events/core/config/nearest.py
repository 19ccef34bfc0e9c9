"""Find the valid names nearest to an unknown name."""

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Return up to `count` of `names` with a spelling like that of `name`, best first."""
    spellings: dict[str, str] = {}
    for candidate in names:
        spellings.setdefault(_plain(candidate), candidate)
    close = difflib.get_close_matches(_plain(name), spellings, n=count, cutoff=0.6)
    return tuple(spellings[match] for match in close)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ` Did you mean a or b?`, or nothing if no name is near."""
    matches = nearest(name, names)
    return f" Did you mean {' or '.join(matches)}?" if matches else ""


def nearest_text(name: str, names: Iterable[str]) -> str:
    """Return ` Nearest: a, b.`, or nothing if no name is near."""
    matches = nearest(name, names)
    return f" Nearest: {', '.join(matches)}." if matches else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").strip("-")

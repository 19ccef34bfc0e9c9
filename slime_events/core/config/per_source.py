"""`per_source`: settings with a number for each source of prompts, `quiz=0.3,file=0.5`."""

import re

from schemas.errors import InvalidValue

FILE, NATS = "file", "nats"
"""The prompts that the run draws itself, and those that producers send over NATS, who have no name."""
_PART = re.compile(r"([A-Za-z0-9_-]{1,32})=(\d+(?:\.\d+)?)")


def per_source(text: str | None, setting: str) -> dict[str, float]:
    """By source. Raises InvalidValue that names the setting."""
    found: dict[str, float] = {}
    for part in (text or "").replace(" ", "").split(",") if text else ():
        match = _PART.fullmatch(part)
        if match is None or match[1] in found:
            raise InvalidValue(
                f"{setting} {text}: {part!r} should be a source and its number, each once: quiz=0.3,file=0.5"
            )
        found[match[1]] = float(match[2])
    return found


def shares(text: str | None) -> dict[str, float]:
    """Of each batch, by source; together 1 at most. Raises InvalidValue."""
    found = per_source(text, "source_share")
    if sum(found.values()) > 1 + 1e-9:
        raise InvalidValue(f"source_share {text}: together they are {sum(found.values()):g}, and a batch has 1")
    return found


def quotas(text: str | None) -> dict[str, int]:
    """Prompts that may wait, by source. Raises InvalidValue."""
    found = per_source(text, "source_quota")
    if wrong := [name for name, most in found.items() if most != int(most) or most < 1]:
        raise InvalidValue(f"source_quota {text}: {wrong[0]} should have a whole number above 0")
    return {name: int(most) for name, most in found.items()}

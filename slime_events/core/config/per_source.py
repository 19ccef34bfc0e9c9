"""Settings that have a number for each source of prompts, such as `quiz=0.3,file=0.5`."""

import re

from schemas.errors import InvalidValue

FILE, NATS = "file", "nats"
"""Names of sources: the prompts that the run draws itself, and those of producers without a name, sent over NATS."""
_PART = re.compile(r"([A-Za-z0-9_-]{1,32})=(\d+(?:\.\d+)?)")


def per_source(text: str | None, setting: str) -> dict[str, float]:
    """Return the numbers by source. Raises InvalidValue, which names the setting."""
    by_source: dict[str, float] = {}
    for part in (text or "").replace(" ", "").split(",") if text else ():
        match = _PART.fullmatch(part)
        if match is None or match[1] in by_source:
            raise InvalidValue(
                f"{setting} {text}: {part!r} must be a source and its number, and each source once: quiz=0.3,file=0.5"
            )
        by_source[match[1]] = float(match[2])
    return by_source


def shares(text: str | None) -> dict[str, float]:
    """Return each source's share of a batch; their sum is at most 1. Raises InvalidValue."""
    by_source = per_source(text, "source_share")
    if sum(by_source.values()) > 1 + 1e-9:
        raise InvalidValue(f"source_share {text}: the sum is {sum(by_source.values()):g}, and must be at most 1")
    return by_source


def quotas(text: str | None) -> dict[str, int]:
    """Return how many prompts of each source may wait. Raises InvalidValue."""
    by_source = per_source(text, "source_quota")
    if wrong := [name for name, most in by_source.items() if most != int(most) or most < 1]:
        raise InvalidValue(f"source_quota {text}: {wrong[0]} needs a whole number above 0")
    return {name: int(most) for name, most in by_source.items()}

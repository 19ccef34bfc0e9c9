"""`preset_words`: the flags of a published model, for `--preset NAME`."""

import tomllib
from functools import lru_cache
from importlib import resources

from schemas.errors import InvalidValue
from slime_events.core.config.nearest import did_you_mean


def preset_words(name: str) -> list[str]:
    """Return the flags of a preset, as on a command line; its name in any case. Raises InvalidValue."""
    names = {other.lower(): other for other in presets()}
    if name.lower() not in names:
        near = did_you_mean(name, names.values()) or f" Presets: {', '.join(names.values())}."
        raise InvalidValue(f"--preset {name}: there is no such preset.{near}")
    return list(presets()[names[name.lower()]])


@lru_cache(maxsize=1)
def presets() -> dict[str, tuple[str, ...]]:
    """Return the flags of each preset, by name."""
    text = resources.files("slime_events.core.config").joinpath("presets.toml").read_text(encoding="utf-8")
    return {
        name: (*family["flags"].split(), *own.split())
        for family in tomllib.loads(text)["family"]
        for name, own in family["models"].items()
    }

"""Find settings that reach beyond a run: a run connects to, loads or executes what they name.

In the settings of an archive they are another user's, and not trusted until the user repeats them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from schemas.errors import UntrustedText
from schemas.text import terminal_text
from schemas.trust import FLAG, is_doubted
from slime_events.core.config.settings import TrainSettings

_ENDS = ("_path", "_url", "_endpoint", "_address")
"""Ends of the names of settings that are a function, an address, or a file with either."""
_OTHERS = (
    *("agent_command", "agent_env", "train_env_vars", "rm_env"),
    *("save_debug_rollout_data", "save_debug_train_data", "dump_details"),
)
"""Settings that are a command, variables for a user's code, or a file of any name to write."""
_OURS = re.compile(
    r"slime_events\.(plugins\.filters|plugins\.rewards\.teacher|algorithms)\.[\w.]+(:\w+)?"
    r"|slime\.(rollout\.filter_hub|rollout\.on_policy_distillation|backends\.megatron_utils\.loss)\.[\w.]+"
)
"""Filters, estimators and corrections of this package, by our names and slime's: they are trusted."""
REMOTE_CODE = "trust_remote_code"
_ALL = tuple(TrainSettings.__struct_fields__)


def reaching(settings: TrainSettings) -> dict[str, list[str]]:
    """Return `component.field` to the texts in it, for settings that differ from the default."""
    values, defaults = (msgspec.to_builtins(part) for part in (settings, TrainSettings()))
    texts: dict[str, list[str]] = {}
    for component, table in values.items():
        for field, value in table.items():
            if value != defaults[component].get(field) and (named := list(_texts(field, value))):
                texts.setdefault(f"{component}.{field}", []).extend(named)
    return texts


def reaching_texts(settings: TrainSettings) -> set[str]:
    """Return the texts of all settings that reach beyond a run."""
    return {text for texts in reaching(settings).values() for text in texts}


def check_reach(settings: TrainSettings, *components: str, flags: Sequence[str] = ()) -> None:
    """Raise UntrustedText, with each setting that is only in the archive. components: default all.

    flags: flags of the command line, which replace settings.
    """
    replaced = {word.partition("=")[0] for word in flags}
    doubted = [
        f"{_flag(key)} {terminal_text(' '.join(texts))}"
        for key, texts in reaching(settings).items()
        if key.partition(".")[0] in (components or _ALL) and _flag(key) not in replaced and any(map(is_doubted, texts))
    ]
    if doubted:
        raise UntrustedText(
            "the archived settings have code, commands or addresses that you did not give:\n"
            + "".join(f"  {line}\n" for line in doubted)
            + f"Give each of these flags, or {FLAG} if the archive is your own"
        )


def _flag(key: str) -> str:
    return "--" + key.partition(".")[2].replace("_", "-")


def _texts(field: str, value: object) -> Iterator[str]:
    reaches = field in _OTHERS or field.endswith(_ENDS)
    if isinstance(value, str):
        if (reaches or "://" in value or "${" in value) and not _OURS.fullmatch(value):
            yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(field if reaches else str(key), inner)
            if reaches and isinstance(key, str):
                yield key
            if str(key).replace("-", "_").endswith(REMOTE_CODE) and inner:
                yield f"--{key}"
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(field, item)

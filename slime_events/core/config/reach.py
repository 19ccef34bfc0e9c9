"""Settings that reach beyond a run: what they name is connected to, loaded or run.

Of one's own run they are what its user wrote. Those of an archive are somebody else's until the user names them too.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from schemas.errors import UntrustedText
from schemas.text import terminal_text
from schemas.trust import FLAG, is_doubted
from slime_events.core.config.settings import TrainSettings

_ENDS = ("_path", "_url", "_endpoint", "_address")
"""Ends of the names of settings that are a function, an address, or a file that is read as one."""
_OTHERS = (
    *("agent_command", "agent_env", "train_env_vars", "rm_env"),
    *("save_debug_rollout_data", "save_debug_train_data", "dump_details"),
)
"""Settings that are a command, variables that somebody's code gets, and files of any name that are written."""
_OURS = re.compile(
    r"slime_events\.(plugins\.filters|plugins\.rewards\.teacher|algorithms)\.[\w.]+(:\w+)?"
    r"|slime\.(rollout\.filter_hub|rollout\.on_policy_distillation|backends\.megatron_utils\.loss)\.[\w.]+"
)
"""Filters, estimators and corrections that come with this package, by our names and slime's: nobody else wrote them."""
REMOTE_CODE = "trust_remote_code"
_ALL = tuple(TrainSettings.__struct_fields__)


def reaching(settings: TrainSettings) -> dict[str, list[str]]:
    """The texts of these settings by flag; a setting that has its default is left out."""
    values, defaults = (msgspec.to_builtins(one) for one in (settings, TrainSettings()))
    texts: dict[str, list[str]] = {}
    for component, table in values.items():
        for field, value in table.items():
            if value != defaults[component].get(field) and (named := list(_texts(field, value))):
                texts.setdefault(f"{component}.{field}", []).extend(named)
    return texts


def reaching_texts(settings: TrainSettings) -> set[str]:
    """All of them."""
    return {text for texts in reaching(settings).values() for text in texts}


def check_reach(settings: TrainSettings, *components: str, flags: Sequence[str] = ()) -> None:
    """Raises UntrustedText naming each setting that only an archive has named. components: by default all.

    flags: of the command line, which replace settings.
    """
    replaced = {word.partition("=")[0] for word in flags}
    doubted = [
        f"{_flag(key)} {terminal_text(' '.join(texts))}"
        for key, texts in reaching(settings).items()
        if key.partition(".")[0] in (components or _ALL) and _flag(key) not in replaced and any(map(is_doubted, texts))
    ]
    if doubted:
        raise UntrustedText(
            "the archived settings name code, commands or addresses that nobody has named here:\n"
            + "".join(f"  {one}\n" for one in doubted)
            + f"Give each of these flags, or {FLAG} where the archive is your own"
        )


def _flag(key: str) -> str:
    return "--" + key.partition(".")[2].replace("_", "-")


def _texts(field: str, value: Any) -> Iterator[str]:
    reaches = field in _OTHERS or field.endswith(_ENDS)
    if isinstance(value, str):
        if (reaches or "://" in value or "${" in value) and not _OURS.fullmatch(value):
            yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(field if reaches else str(key), one)
            if reaches and isinstance(key, str):
                yield key
            if str(key).replace("-", "_").endswith(REMOTE_CODE) and one:
                yield f"--{key}"
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(field, one)

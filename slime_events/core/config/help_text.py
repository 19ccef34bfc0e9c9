"""`help_text`: the help of `train`, from the structs of settings."""

import json
import textwrap
from typing import Any

import msgspec

from slime_events.core.config.fields import COMPONENTS, NOTHING_REGISTERED, Registered, SettingsField, settings_fields
from slime_events.core.config.values import ValueType

_USAGE = """\
usage: slime-events train [--config FILE] [--FLAG [VALUE ...]] ...

--config FILE takes settings from TOML; flags go before it wherever they stand. slime's flags work by their names.
Megatron's flags pass through by name (--recompute-granularity full), SGLang's with --sglang- before them
(--sglang-mem-fraction-static 0.7); both are checked against the installed packages. Any switch --x has --no-x.
"""


def help_text(width: int = 100, registered: Registered = NOTHING_REGISTERED) -> str:
    """The help of every flag of ours, by component, wrapped to `width` columns."""
    groups = [_USAGE]
    for component, struct in COMPONENTS.items():
        doc = (struct.__doc__ or "").strip().splitlines()[0]
        lines = [f"{component}: {doc}"]
        for field in settings_fields():
            if field.component == component:
                lines.append(_entry(field, registered.type_of(field), width))
        groups.append("\n".join(lines) + "\n")
    return "\n".join(groups)


def value_words(expected: ValueType) -> str:
    """What follows the flag: `N`, `TEXT ...`, `a|b`, or nothing for a switch."""
    if expected.switch:
        return ""
    if expected.choices:
        return "|".join(str(choice) for choice in expected.choices)
    word = expected.kinds[0].placeholder
    return f"{word} ..." if expected.many else word


def default_words(default: Any) -> str:
    """A default as one would write it; empty for unset, empty or off."""
    if default is None or default is False or default in ("", [], {}):
        return ""
    if default is True:
        return "on"
    return str(default) if isinstance(default, str) else json.dumps(msgspec.to_builtins(default))


def _entry(field: SettingsField, expected: ValueType, width: int) -> str:
    head = f"  {field.usual_flag} {value_words(expected)}".rstrip()
    default = default_words(field.default)
    text = f"{field.description} [{default}]" if default else field.description
    if field.usual_flag != field.flag:
        text = f"switch off: {field.description}"
    body = textwrap.wrap(text, max(20, width - 36)) or [""]
    pad = " " * 36
    first = f"{head:<36}{body[0]}" if len(head) < 36 else f"{head}\n{pad}{body[0]}"
    return "\n".join([first, *(pad + line for line in body[1:])])

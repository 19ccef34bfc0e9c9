"""`help_text`: the help of `train`, made from the settings structs."""

import json
import textwrap

import msgspec

from slime_events.core.config.fields import COMPONENTS, NOTHING_REGISTERED, Registered, SettingsField, settings_fields
from slime_events.core.config.values import ValueType

_USAGE = """\
usage: slime-events train [--config FILE] [--FLAG [VALUE ...]] ...

--config FILE reads settings from a TOML file; flags override it, in any position. slime's flags have their names.
Megatron's flags have no prefix (--recompute-granularity full), SGLang's begin with --sglang-
(--sglang-mem-fraction-static 0.7); both are checked against the installed packages. Any switch --x has --no-x.
--preset NAME gives the flags of a published model, as slime's files in scripts/models have them: qwen3-4B, ...
--print-config prints all settings as one TOML file for --config, and starts nothing.
--dry-run checks everything that a start checks, prints the plan of `slime-events plan`, and starts nothing.
"""


def help_text(width: int = 100, registered: Registered = NOTHING_REGISTERED) -> str:
    """Return the help of every flag of a setting, by component, wrapped to `width` columns."""
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
    """Return the placeholder after a flag: `N`, `TEXT ...`, `a|b`, or nothing for a switch."""
    if expected.switch:
        return ""
    if expected.choices:
        return "|".join(str(choice) for choice in expected.choices)
    word = expected.kinds[0].placeholder
    return f"{word} ..." if expected.many else word


def default_words(default: object) -> str:
    """Return a default as a user writes it; empty if it is unset, empty or off."""
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

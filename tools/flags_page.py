"""Generate `docs/flags.md` from slime's flags and our tables: `python -m tools.flags_page docs/flags.md`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

from schemas.doc import doc
from slime_events.algorithms.train_arguments import registered
from slime_events.core.config import tables
from slime_events.core.config.fields import honoured, settings_fields
from slime_events.core.config.flags import FILES, OLDER_FLAGS
from slime_events.core.config.help_text import default_words
from slime_events.core.config.rule_checks import reason
from slime_events.core.config.rules import Later
from tools.page_command import write_page
from tools.settings_page import section

NEEDS_GPU = {"--colocate": "on the CPU, processes share the cores anyway, and a note says that the flag has no effect"}
"""slime's flags that only have an effect on GPUs, with their meaning on the CPU."""


class Status(Enum):
    """Effect of one of slime's flags here."""

    WORKS = "works"
    NEEDS_GPU = "needs a GPU"
    ONE_VALUE = "takes one value"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


_MEANS = {
    Status.WORKS: "a setting of the run, with the same meaning as in slime",
    Status.NEEDS_GPU: "the same, but only on GPUs",
    Status.ONE_VALUE: "only the value that is always used here is accepted; another one ends the command with a reason",
    Status.NO_EFFECT: "accepted; the command prints why it changes nothing",
    Status.REFUSED: "ends the command with code 2 and the reason",
}


@dataclass(frozen=True, slots=True)
class SlimeFlag:
    """A flag of slime."""

    topic: str
    flag: str
    default: Annotated[str, doc("As written on a command line; empty for unset")]
    meaning: Annotated[str, doc("Meaning in slime")]


@dataclass(frozen=True, slots=True)
class Support:
    """Support of a flag of slime here."""

    status: Status
    default: Annotated[str, doc("Default here, as written on a command line; empty for unset")] = ""
    note: str = ""


def slime_flags() -> tuple[SlimeFlag, ...]:
    """Return slime's own flags in its order."""
    lines = Path(__file__).with_name("slime_flags.tsv").read_text(encoding="utf-8").splitlines()
    return tuple(SlimeFlag(*line.split("\t")) for line in lines if not line.startswith("#"))


def support_of(flag: str) -> Support:
    """Return how a flag is supported. Raises KeyError for a flag that no table has."""
    if flag in honoured():
        (field, *_) = honoured()[flag]
        note = NEEDS_GPU.get(flag, "")
        default = "off" if field.type.switch and field.default in (False, True) else _shown(field.default)
        return Support(Status.NEEDS_GPU if flag in NEEDS_GPU else Status.WORKS, default, note)
    if flag in OLDER_FLAGS:
        other, meaning = OLDER_FLAGS[flag]
        return Support(Status.WORKS, "off", f"`{other}`: {meaning}")
    if flag in FILES:
        return Support(Status.WORKS, "", "its entries take precedence over the command line")
    if flag in tables.CLASSIC:
        return Support(Status.WORKS, "", "compared with the checkpoint's `config.json`")
    if flag in tables.ONLY_VALUE:
        value, reason = tables.ONLY_VALUE[flag]
        others = [value for name, value in tables.SETTING_VALUES if name == flag]
        return Support(Status.ONE_VALUE, value, f"or `{'`, `'.join(others)}`; {reason}" if others else reason)
    if flag in tables.INERT:
        return Support(Status.NO_EFFECT, "", tables.INERT[flag][1])
    return Support(Status.REFUSED, "", tables.NOT_YET[flag])


def document() -> str:
    """Return the whole page in Markdown."""
    supported = [(flag, support_of(flag.flag)) for flag in slime_flags()]
    counts = Counter(support.status for _, support in supported)
    summary = [(status.value, str(counts[status]), _MEANS[status]) for status in Status]
    parts = [_INTRO.format(all=len(supported)), section("Counts", "", ("status", "flags", "meaning"), summary)]
    parts += [section("Other defaults", _OTHER_DEFAULTS, ("setting", "here", "in slime"), _defaults())]
    for topic in dict.fromkeys(flag.topic for flag, _ in supported):
        rows = [_row(flag, support) for flag, support in supported if flag.topic == topic]
        parts.append(section(topic, "", ("flag", "in slime", "its default", "default here", "here"), rows))
    return "\n".join([*parts, _rules(), _later(), _classic(), _OUTRO])


def _row(flag: SlimeFlag, support: Support) -> tuple[str, ...]:
    here = f"**{support.status.value}**" + (f": {support.note}" if support.note else "")
    return f"`{flag.flag}`", flag.meaning, _code(flag.default), _code(support.default), here


def _code(default: str) -> str:
    return f"`{default}`" if default else ""


def _shown(default: object) -> str:
    return default_words(default) if default is not False else "off"


def _defaults() -> list[tuple[str, ...]]:
    by_name = {(field.component, field.name): field for fields in honoured().values() for field in fields}
    rows = [(f"`{key[1]}`", _shown(by_name[key].default), str(theirs)) for key, theirs in tables.SLIME_DEFAULTS.items()]
    rows.append(("`bf16`", "on for GPUs, off for the CPU", "on"))
    return [*rows, ("`actor_num_gpus_per_node`", "1", "8")]


def _rules() -> str:
    rows = []
    for field in settings_fields():
        for rule in registered().rules_of(field):
            value = f" {rule.value}" if rule.value else ""
            text = f"{rule.act.value} {_conditions(rule.others)}"
            text += f", unless {_conditions(rule.unless)}" if rule.unless else ""
            rows.append((f"`{field.name}{value}`", text, reason(rule)))
    return section("Rules between settings", _RULES, ("setting", "rule", "why"), rows)


def _later() -> str:
    rows = []
    for later, command in _COMMANDS.items():
        fields = [field for field in settings_fields() if later & field.later]
        fixed = [field for field in settings_fields() if field not in fields]
        listed = ", ".join(f"`{field.name}`" for field in (fields if len(fields) < len(fixed) else fixed))
        rows.append((command, listed if len(fields) < len(fixed) else f"all except {listed}"))
    return section("Settings of later runs", _LATER, ("command", "settings that it may change"), rows)


def _conditions(conditions: Sequence[str]) -> str:
    """Return conditions in words; values of the same setting are listed after its name."""
    words, before = list[str](), ""
    for condition in conditions:
        name, _, value = condition.partition("=")
        words.append(f"`{value}`" if name == before else f"`{name.replace('!', ' not')} {value}`".replace(" `", "`"))
        before = name
    return " or ".join(words)


def _classic() -> str:
    rows = []
    for flag, (name, _) in tables.CLASSIC.items():
        if name in tables.MEGATRON_IDLE:
            rows.append((f"`{flag}`", f"**{Status.NO_EFFECT.value}**: {tables.MEGATRON_IDLE[name]}"))
        else:
            rows.append((f"`{flag}`", f"sets `{name}`" + (", only on GPUs" if name in tables.MEGATRON_CUDA else "")))
    return section("Megatron's classic names", _CLASSIC, ("flag", "here"), rows)


_INTRO = """\
# slime's flags

This page is generated from the source: `python -m tools.flags_page docs/flags.md`.

It lists slime's own flags ({all} with those of its SGLang side, v0.3.1), their meaning in slime and their effect here.
No flag is ignored silently: when `train` begins, it prints each flag without effect and the reason. It also prints a
setting that needs another setting to have an effect, such as `--tis-clip` without `--use-tis`.
Settings that slime does not have are on the [settings](settings.md) page.
"""

_OTHER_DEFAULTS = """\
The defaults of these settings differ from slime's, and so does the result. `train` prints the defaults that apply in
one line (except bf16, which depends on the device, and the number of GPUs):"""

_RULES = """\
`train` applies these before anything starts. A setting that needs or excludes another ends the command with the reason;
a setting without effect is printed. Rules over several numbers, such as batch sizes, are checked too."""

_COMMANDS = {
    Later.RESUME: "`resume`",
    Later.RESCORE: "`rescore`",
    Later.LEARN: "`retrain --branch`",
    Later.BRANCH: "`branch --reset-optimizer`",
    Later.BRANCH_WITH_OPTIMIZER: "`branch`",
}
_LATER = """\
These commands use a recorded run with other values of some settings. They end with the reason if a flag changes a
setting that they cannot change."""

_CLASSIC = """\
A launch script's `MODEL_ARGS` contain names of Megatron-LM that are not fields of megatron-core. These names are
accepted. Flags that describe the architecture are compared with the checkpoint's `config.json` before anything starts;
a difference ends the command. Every field of megatron-core's configurations is a flag too, by its own name.

[Models](models.md) lists model classes, layouts and what is refused: it ends the command before anything starts."""

_OUTRO = """\
## SGLang and its router

Every field of the installed SGLang's `ServerArgs` is a flag with the prefix `--sglang-`. `--router-*`, the flags
of SGLang's router, are accepted without effect: there is no router, as engines pull their work from the log. Those that
divide a request between prefill and decode, look for servers, or pass requests to another service are refused.

## What can go wrong

A refused flag, here `--release-train`, ends the command before anything starts:

```
error: --release-train is not supported yet: it needs a trainer that stops and restarts around each step.
```

A flag without effect is printed, and the run continues:

```
note: --num-gpus-per-node: no effect; Ray detects the devices of each node.
```
"""


if __name__ == "__main__":
    write_page(__doc__, document)

"""`docs/flags.md` made again, from slime's flags and the tables of ours: `python -m tools.flags_page docs/flags.md`."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from slime_events.core.config import tables
from slime_events.core.config.fields import honoured, settings_fields
from slime_events.core.config.flags import FILES, OLDER_FLAGS
from slime_events.core.config.help_text import default_words
from slime_events.core.config.rule_checks import reason
from tools.settings_page import section

NEEDS_GPU = {"--colocate": "on the CPU processes share the cores anyway, and a note says that the flag has no effect"}
"""Flags of slime's that are honoured and act on GPUs alone, and what they are without."""


class Status(Enum):
    """What giving a flag comes to."""

    WORKS = "works"
    NEEDS_GPU = "needs a GPU"
    ONE_VALUE = "takes one value"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


_MEANS = {
    Status.WORKS: "it is a setting of the run, and does what it does in slime",
    Status.NEEDS_GPU: "the same, on GPUs alone",
    Status.ONE_VALUE: "one value is what happens here anyway; any other ends the command, with the reason",
    Status.NO_EFFECT: "it is accepted, and the command prints why it changes nothing",
    Status.REFUSED: "it ends the command with code 2 and the reason",
}


@dataclass(frozen=True, slots=True)
class SlimeFlag:
    """A flag of slime's. default: as one writes it, empty for unset. meaning: in slime."""

    topic: str
    flag: str
    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Standing:
    """ours: the default here, empty for unset. note: what there is to say of it."""

    status: Status
    ours: str = ""
    note: str = ""


def slime_flags() -> tuple[SlimeFlag, ...]:
    """All of slime's own, in its order."""
    lines = Path(__file__).with_name("slime_flags.tsv").read_text(encoding="utf-8").splitlines()
    return tuple(SlimeFlag(*line.split("\t")) for line in lines if not line.startswith("#"))


def standing(flag: str) -> Standing:
    """What a flag comes to here. Raises KeyError for one that no table has."""
    if flag in honoured():
        (known, *_) = honoured()[flag]
        note = NEEDS_GPU.get(flag, "")
        ours = "off" if known.type.switch and known.default in (False, True) else _shown(known.default)
        return Standing(Status.NEEDS_GPU if flag in NEEDS_GPU else Status.WORKS, ours, note)
    if flag in OLDER_FLAGS:
        other, meaning = OLDER_FLAGS[flag]
        return Standing(Status.WORKS, "off", f"`{other}`: {meaning}")
    if flag in FILES:
        return Standing(Status.WORKS, "", "its entries go over the command line")
    if flag in tables.CLASSIC:
        return Standing(Status.WORKS, "", "compared with the checkpoint's `config.json`")
    if flag in tables.ONLY_VALUE:
        value, reason = tables.ONLY_VALUE[flag]
        others = [value for one, value in tables.SETTING_VALUES if one == flag]
        return Standing(Status.ONE_VALUE, value, f"or `{'`, `'.join(others)}`; {reason}" if others else reason)
    if flag in tables.INERT:
        return Standing(Status.NO_EFFECT, "", tables.INERT[flag][1])
    return Standing(Status.REFUSED, "", tables.NOT_YET[flag])


def document() -> str:
    """The whole page, in Markdown."""
    known = [(flag, standing(flag.flag)) for flag in slime_flags()]
    counts = Counter(one.status for _, one in known)
    summary = [(one.value, str(counts[one]), _MEANS[one]) for one in Status]
    parts = [_INTRO.format(all=len(known)), section("Counts", "", ("status", "flags", "what it means"), summary)]
    parts += [section("Other defaults", _OTHER_DEFAULTS, ("setting", "here", "in slime"), _defaults())]
    for topic in dict.fromkeys(flag.topic for flag, _ in known):
        rows = [_row(flag, one) for flag, one in known if flag.topic == topic]
        parts.append(section(topic, "", ("flag", "in slime", "its default", "default here", "here"), rows))
    return "\n".join([*parts, _rules(), _classic(), _OUTRO])


def _row(flag: SlimeFlag, one: Standing) -> tuple[str, ...]:
    here = f"**{one.status.value}**" + (f": {one.note}" if one.note else "")
    return f"`{flag.flag}`", flag.meaning, _code(flag.default), _code(one.ours), here


def _code(default: str) -> str:
    return f"`{default}`" if default else ""


def _shown(default: Any) -> str:
    return default_words(default) if default is not False else "off"


def _defaults() -> list[tuple[str, ...]]:
    by_name = {(one.component, one.name): one for known in honoured().values() for one in known}
    rows = [(f"`{key[1]}`", _shown(by_name[key].default), str(theirs)) for key, theirs in tables.SLIME_DEFAULTS.items()]
    rows.append(("`bf16`", "on for GPUs, off for the CPU", "on"))
    return [*rows, ("`actor_num_gpus_per_node`", "1", "8")]


def _rules() -> str:
    rows = []
    for field in settings_fields():
        for rule in field.rules:
            value = f" {rule.value}" if rule.value else ""
            others = " or ".join(f"`{other.replace('=', ' ')}`" for other in rule.others)
            rows.append((f"`{field.name}{value}`", f"{rule.act.value} {others}", reason(rule)))
    return section("Rules between settings", _RULES, ("setting", "rule", "why"), rows)


def _classic() -> str:
    rows = []
    for flag, (name, _) in tables.CLASSIC.items():
        if name in tables.MEGATRON_IDLE:
            rows.append((f"`{flag}`", f"**{Status.NO_EFFECT.value}**: {tables.MEGATRON_IDLE[name]}"))
        else:
            rows.append((f"`{flag}`", f"sets `{name}`" + (", on GPUs alone" if name in tables.MEGATRON_CUDA else "")))
    return section("Megatron's classic names", _CLASSIC, ("flag", "here"), rows)


_INTRO = """\
# slime's flags

This page is made from the source: `python -m tools.flags_page docs/flags.md`.

Every flag of slime's own ({all} with those of its SGLang side, v0.3.1), what it is there, and what it comes to here. No
flag is ignored in silence: what is accepted and changes nothing is printed with its reason when `train` begins. So is a
setting that needs another one to have an effect, such as `--tis-clip` without `--use-tis`.
Settings that slime does not have are on the page of [settings](settings.md).
"""

_OTHER_DEFAULTS = """\
Where nobody gives these, the outcome is not slime's. `train` prints those that apply in one line (not bf16, which
follows the device, and not the number of GPUs):"""

_RULES = """\
`train` applies these before anything starts. A setting that needs or excludes another ends the command with the reason;
a setting without effect is printed. Rules over several numbers, such as batch sizes, are checked too."""

_CLASSIC = """\
A launch script's `MODEL_ARGS` have names of Megatron-LM that are no fields of megatron-core. They are known here. What
describes the architecture is compared with the checkpoint's `config.json`, before anything starts; a difference ends
the command. Every field of megatron-core's configurations is a flag too, by its own name.

The trainer runs tensor and data parallelism of dense Qwen and Llama models: `--pipeline-model-parallel-size` or
`--context-parallel-size` above 1, or a checkpoint of another architecture, ends the command before anything starts."""

_OUTRO = """\
## SGLang and its router

Every field of the installed SGLang's `ServerArgs` is a flag with `--sglang-` before it. `--router-*` is accepted
without effect: there is no router, engines pull their work from the log.

## What can go wrong

A refused flag, here `--mtp-num-layers 1`, ends the command before anything starts:

```
error: --mtp-num-layers is not supported yet: multi-token prediction layers are not built in the trainer.
```

A flag without effect is said, and the run goes on:

```
note: --num-gpus-per-node: no effect; Ray detects the devices of each node.
```
"""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), encoding="utf-8")

"""Generate `docs/settings.md` from structs and tables: `python -m tools.settings_page docs/settings.md`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from slime_events.algorithms.train_arguments import registered
from slime_events.core.config import tables
from slime_events.core.config.fields import COMPONENTS, Registered, SettingsField, settings_fields
from slime_events.core.config.flags import OLDER_FLAGS
from slime_events.core.config.help_text import default_words, value_words
from slime_events.core.config.router_flags import NO_ROUTER
from tools.page_command import write_page

DEFAULTS_OF_SLIME: dict[str, str] = {
    "actor_num_gpus_per_node": "8",
    "bf16": "on",
    "max_staleness": "0 in train.py, 1 in train_async.py",
} | {name: str(theirs) for (_, name), theirs in tables.SLIME_DEFAULTS.items()}
"""slime's default of each field whose default differs."""

_INTRO = """\
# Settings

This page is generated from the source: `python -m tools.settings_page docs/settings.md`.

Every setting is a flag of `slime-events train` and a key in TOML, under the table of its component. `--config FILE`
reads settings from a TOML file; flags take precedence over the file, in any order. The `run.started` event records the
resolved settings of a run. An unknown name is an error with the nearest names. Settings that exclude each other are an
error with the reason.

```toml
[rollout]
num_rollout = 200
rollout_batch_size = 32

[trainer.megatron]
recompute_granularity = "full"

[engine.sglang]
mem_fraction_static = 0.7
```

- Megatron's flags pass through by name, without a prefix (`--recompute-granularity full`, `--no-rope-fusion`): every
  field of megatron-core's transformer, parallelism, optimizer and data parallel configs, and the classic names below.
- SGLang's flags pass through with the prefix `--sglang-`: every field of the installed release's `ServerArgs`.
- Both are checked by name and type against the source of the installed packages, before anything starts.
- A list is given as several words, or by repeating the flag. A value that begins with `--` is written `--flag=value`.
"""


def document(registered: Registered) -> str:
    """Return the whole page in Markdown."""
    parts = [_INTRO, *(_component(name, registered) for name in COMPONENTS), _derived(), _other_flags()]
    return "\n".join(parts)


def _component(component: str, registered: Registered) -> str:
    doc = " ".join((COMPONENTS[component].__doc__ or "").split())
    rows = [
        _row(field, value_words(registered.type_of(field)))
        for field in settings_fields()
        if field.component == component
    ]
    return section(f"`[{component}]`", doc, ("flag", "value", "default", "meaning"), rows)


def _row(field: SettingsField, value: str) -> tuple[str, ...]:
    default = default_words(field.default)
    if field.name in DEFAULTS_OF_SLIME:
        default = f"{default or 'unset'} (slime: {DEFAULTS_OF_SLIME[field.name]})"
    switched_off = field.usual_flag != field.flag
    flag = f"`{field.usual_flag}` (`{field.name} = false`)" if switched_off else f"`{field.flag}`"
    return flag, value.replace("|", " "), default, field.description


def _derived() -> str:
    rows = [
        (
            "`global_batch_size`, `num_steps_per_rollout`",
            "from each other; neither: one optimizer step per rollout step",
        ),
        ("`eps_clip_high`", "`eps_clip`"),
        ("`rollout_max_prompt_len`", "`rollout_max_context_len` - 1"),
        ("`eval_*`", "the rollout's and data's own"),
        ("`eval_on`", "`version`"),
        ("`eval_reward_key`", "`reward_key`"),
        ("`grpo_std_normalization`", "off for groups of one sample"),
        ("`max_staleness`", "at least `update_weights_interval` - 1"),
        ("`sequence_parallel`", "off if `tensor_model_parallel_size` is 1, with a note"),
        ("`lr_decay_iters`", "the whole run, if a schedule needs it and `num_rollout` is set"),
    ]
    return section("Derived settings", "", ("setting", "value if not set"), rows)


def _other_flags() -> str:
    classic = ", ".join(f"`{flag}`" for flag in tables.CLASSIC)
    inert = [(f"`{flag}`", reason) for flag, (_, reason) in tables.INERT.items()]
    inert += [("`--router-*`: the flags of SGLang's router that are not refused", NO_ROUTER)]
    only = [(f"`{flag}`", f"`{value}`", reason) for flag, (value, reason) in tables.ONLY_VALUE.items()]
    not_yet = [(f"`{flag}`", needs) for flag, needs in tables.NOT_YET.items()]
    ours = [(f"`--sglang-{name.replace('_', '-')}`", use) for name, use in tables.SGLANG_OURS.items()]
    older = "These names are accepted as aliases: " + ", ".join(f"`{flag}`" for flag in OLDER_FLAGS)
    return "\n".join([
        section("Accepted, without effect", f"`train` prints the reason. {older}.", ("flag", "why"), inert),
        section("Accepted with one value", "", ("flag", "value", "why not others"), only),
        section("Not supported yet", "These stop the command.", ("flag", "why"), not_yet),
        section("Set by the engine itself", "These stop the command.", ("flag", "use"), ours),
        f"## Megatron-LM's classic names\n\n{classic}\n",
    ])  # fmt: skip


def section(title: str, text: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a heading, a text and a table in Markdown."""
    lines = [f"## {title}", "", *([text, ""] if text else []), _cells(head), _cells("---" for _ in head)]
    return "\n".join([*lines, *map(_cells, rows), ""])


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    write_page(__doc__, partial(document, registered()))

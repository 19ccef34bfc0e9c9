"""What product code uses of the inside of pinned packages: the table storage/reaches.toml, and whether it is there.

A target is `module:Name`, `module:Class.name` or `module:function(parameter, ...)`. It is looked for in the installed
source (or the stub of a compiled module), so nothing heavy is imported. docs/vendored.md shows the table.
"""

import functools
import importlib.util
import re
import tomllib
from pathlib import Path

import msgspec

TABLE = Path(__file__).with_name("reaches.toml")


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """One use. where: files of ours. gain: what it buys, measured. issue: upstream, empty where none is known."""

    package: str
    targets: tuple[str, ...]
    where: tuple[str, ...]
    why: str
    gain: str
    issue: str = ""


@functools.cache
def reaches() -> tuple[Reach, ...]:
    """The table."""
    return msgspec.convert(tomllib.loads(TABLE.read_text(encoding="utf-8"))["reach"], tuple[Reach, ...])


def missing(where: str | None = None) -> list[str]:
    """Targets (of one file of ours) that the installed packages lack. Packages that are not there are left out."""
    wanted = (reach for reach in reaches() if where is None or where in reach.where)
    return [target for reach in wanted for target in reach.targets if is_there(target) is False]


def is_there(target: str) -> bool | None:
    """Whether the installed package has it, with the parameters that the target names; None without the package."""
    module, _, path = target.partition(":")
    path, _, parameters = path.rstrip(")").partition("(")
    cls, _, name = path.rpartition(".")
    text = _text(module, cls)
    if text is None:
        return None
    if not parameters:
        return bool(_definition(name, of_class=bool(cls)).search(text))
    found = re.search(rf"^ *(?:async )?def {name}\((.*?)\)\s*(?:->.*?)?:$", text, re.DOTALL | re.MULTILINE)
    return found is not None and all(re.search(rf"\b{one}\b", found[1]) for one in parameters.split(", "))


@functools.cache
def _text(module: str, cls: str) -> str | None:
    """The source of a module, or of one class in it; None without the package."""
    package, *names = module.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not (folders := spec.submodule_search_locations):
        return None
    if cls:
        found = re.search(rf"^class {cls}\b.*?(?=^[^\s)#]|\Z)", _text(module, "") or "", re.DOTALL | re.MULTILINE)
        return found[0] if found else ""
    path = Path(next(iter(folders)), *names)
    files = (path.with_suffix(".py"), path / "__init__.py", path.with_suffix(".pyi"), path / "__init__.pyi")
    return "\n".join(file.read_text(encoding="utf-8") for file in files if file.is_file())


def _definition(name: str, *, of_class: bool) -> re.Pattern[str]:
    """A function, class, assignment, annotation or import of a name; of a class also an attribute of `self`."""
    indent, prefix = (" *", r"(?:self\.)?") if of_class else ("", "")
    return re.compile(
        rf"^{indent}(?:async )?(?:def|class) {name}\b|^{indent}{prefix}{name}(?:: .*)? ?=|^{indent}{prefix}{name}: "
        rf"|^ *(?:from .* )?import .*\b{name}\b",
        re.MULTILINE,
    )

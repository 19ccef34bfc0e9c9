"""Internals of pinned packages that product code uses: the table storage/reaches.toml, and a check that they exist.

A target is `module:Name`, `module:Class.name` or `module:function(parameter, ...)`. It is searched in the installed
source (or the stub of a compiled module), so nothing heavy is imported. docs/vendored.md shows the table.
"""

import functools
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from schemas.doc import doc

TABLE = Path(__file__).with_name("reaches.toml")


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """One use of a package's internals."""

    package: str
    targets: tuple[str, ...]
    where: Annotated[tuple[str, ...], doc("Our files that use the targets.")]
    why: str
    gain: Annotated[str, doc("Measured benefit.")]
    issue: Annotated[str, doc("Upstream issue; empty if none is known.")] = ""


@functools.cache
def reaches() -> tuple[Reach, ...]:
    """Return the table."""
    return msgspec.convert(tomllib.loads(TABLE.read_text(encoding="utf-8"))["reach"], tuple[Reach, ...])


def missing(where: str | None = None) -> list[str]:
    """Return the targets (of one of our files) that the installed packages lack. Missing packages are skipped."""
    used = (reach for reach in reaches() if where is None or where in reach.where)
    return [target for reach in used for target in reach.targets if is_there(target) is False]


def is_there(target: str) -> bool | None:
    """Return whether the installed package has the target and its parameters; None without the package."""
    module, _, path = target.partition(":")
    path, _, parameters = path.rstrip(")").partition("(")
    cls, _, name = path.rpartition(".")
    text = _text(module, cls)
    if text is None:
        return None
    if not parameters:
        return bool(_definition(name, of_class=bool(cls)).search(text))
    match = re.search(rf"^ *(?:async )?def {name}\((.*?)\)\s*(?:->.*?)?:$", text, re.DOTALL | re.MULTILINE)
    return match is not None and all(re.search(rf"\b{name}\b", match[1]) for name in parameters.split(", "))


@functools.cache
def _text(module: str, cls: str) -> str | None:
    """Return the source of a module, or of one class in it; None without the package."""
    package, *names = module.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not (folders := spec.submodule_search_locations):
        return None
    if cls:
        match = re.search(rf"^class {cls}\b.*?(?=^[^\s)#]|\Z)", _text(module, "") or "", re.DOTALL | re.MULTILINE)
        return match[0] if match else ""
    path = Path(next(iter(folders)), *names)
    files = (path.with_suffix(".py"), path / "__init__.py", path.with_suffix(".pyi"), path / "__init__.pyi")
    return "\n".join(file.read_text(encoding="utf-8") for file in files if file.is_file())


def _definition(name: str, *, of_class: bool) -> re.Pattern[str]:
    """Return a pattern of a name's definition, assignment, annotation or import; in a class also of `self.name`."""
    indent, prefix = (" *", r"(?:self\.)?") if of_class else ("", "")
    return re.compile(
        rf"^{indent}(?:async )?(?:def|class) {name}\b|^{indent}{prefix}{name}(?:: .*)? ?=|^{indent}{prefix}{name}: "
        rf"|^ *(?:from .* )?import .*\b{name}\b",
        re.MULTILINE,
    )

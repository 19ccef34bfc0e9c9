"""Placeholder packages: SGLang imports some GPU-only packages at module level on the way to code that never calls them.

A placeholder answers every import below its name; whatever is taken from it fails only when it is called, and says so.
The engine's child processes are spawned, so a placeholder has to be a package in a folder, not a `sys.modules` entry.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn


def _refuse(qualified_name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"{qualified_name} is a placeholder on machines without a GPU; "
            f"install {qualified_name.split('.')[0]} to use what needs it"
        )

    return refuse


class _Placeholder(type):
    """Class of all placeholders: any public attribute of one is another (enum members, nested functions)."""

    def __getattr__(cls, name: str) -> type:
        return attribute_of(f"{cls.__module__}.{cls.__name__}")(name)


def attribute_of(package: str) -> Callable[[str], type]:
    """A module `__getattr__` that makes a class for each name; it can be named and subclassed, not instantiated."""

    def get(name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Placeholder(name, (), {"__module__": package, "__new__": _refuse(f"{package}.{name}")})

    return get


class _Submodules(MetaPathFinder, Loader):
    """Makes `package.anything` importable, as empty as the package itself."""

    def __init__(self, package: str) -> None:
        self.prefix = package + "."

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(self.prefix) else None

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = attribute_of(module.__name__)  # type: ignore[method-assign]


def install(package: str) -> Callable[[str], type]:
    """Called from a placeholder's `__init__`: answer its submodules, return its `__getattr__`."""
    sys.meta_path.append(_Submodules(package))
    return attribute_of(package)

"""Placeholder packages: SGLang imports some GPU-only packages at module level on paths that never call them.

A placeholder answers every import below its name. Its attributes fail only when they are called, with a clear message.
The engine's child processes are spawned, so a placeholder must be a package in a folder, not a `sys.modules` entry.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn


def _refuse(qualified_name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            f"{qualified_name} is a placeholder on machines without a GPU; "
            f"install {qualified_name.split('.')[0]} to use it"
        )

    return refuse


class _Placeholder(type):
    """Class of all placeholders: every public attribute is another placeholder (enum members, nested functions)."""

    def __getattr__(cls, name: str) -> type:
        return attribute_of(f"{cls.__module__}.{cls.__name__}")(name)


def attribute_of(package: str) -> Callable[[str], type]:
    """Return a module `__getattr__` that makes a class for each name: for naming and subclassing, not for instances."""

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
    """Answer the imports of a placeholder's submodules. Return `__getattr__` for the package's `__init__`."""
    sys.meta_path.append(_Submodules(package))
    return attribute_of(package)

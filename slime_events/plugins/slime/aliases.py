"""Aliases for slime's names and our own earlier names, so that command lines, plug-ins and recorded paths work.

`from slime.utils.types import Sample` and the other imports of `SLIME_MODULES` give our types, unless a real `slime`
package is installed, which then takes precedence. Modules of slime that are not listed do not exist here. A folder
`slime` without an `__init__.py`, such as a clone of slime in the working directory, is not an installed package.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

from slime_events.plugins.slime.modules import NOT_HERE, SLIME_MODULES

EARLIER_PACKAGES = {
    "slime_events.rewards.coin": "slime_events.plugins.rewards.random_reward",
    "slime_events.filters": "slime_events.plugins.filters",
    "slime_events.rewards": "slime_events.plugins.rewards",
    "slime_events.sample": "slime_events.plugins.sample",
}
"""Module names of plug-ins and recorded settings before 0.2, and their names now. A module comes before its package.

Logs keep such paths permanently.
"""


class _AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Importer of SLIME_MODULES and EARLIER_PACKAGES. It comes first, since Python accepts any folder as a package.

    `served` holds the names of each slime module at the time it was imported.
    """

    served: ClassVar[dict[str, dict[str, Any]]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if current := _current_name(fullname):
            is_package = hasattr(importlib.import_module(current), "__path__")
            return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)
        if fullname not in SLIME_MODULES and fullname not in NOT_HERE:
            return None
        if _is_installed():
            return None
        if fullname in NOT_HERE:
            raise ModuleNotFoundError(f"{fullname} is not here: {NOT_HERE[fullname]}", name=fullname)
        is_package = any(module.startswith(f"{fullname}.") for module in SLIME_MODULES)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        if current := _current_name(module.__name__):
            names = vars(importlib.import_module(current))
            vars(module).update({name: value for name, value in names.items() if not name.startswith("__")})
            return
        names_of = {name: _ours(module.__name__, name) for name in SLIME_MODULES[module.__name__]}
        vars(module).update(names_of)
        self.served[module.__name__] = names_of


def _is_installed() -> bool:
    """Return whether a real `slime` package is imported, or can be imported and has code."""
    if (root := sys.modules.get("slime")) is not None:
        spec = root.__spec__
        return spec is None or not (isinstance(spec.loader, _AliasFinder) or _is_folder(spec))
    others = (finder for finder in sys.meta_path if not isinstance(finder, _AliasFinder))
    specs = (finder.find_spec("slime", None) for finder in others)
    return any(spec is not None and not _is_folder(spec) for spec in specs)


def _is_folder(spec: importlib.machinery.ModuleSpec) -> bool:
    """Return whether this is a namespace package: a folder that has a package's name, but no code."""
    return spec.origin is None and spec.submodule_search_locations is not None


def _current_name(module: str) -> str | None:
    """Return today's name of a module under one of EARLIER_PACKAGES; None for any other module."""
    return next(
        (new + module[len(old) :] for old, new in EARLIER_PACKAGES.items() if f"{module}.".startswith(f"{old}.")), None
    )


def _ours(module: str, name: str) -> Any:
    """Return our object for a name of slime's."""
    home, _, attribute = SLIME_MODULES[module][name].partition(":")
    return getattr(importlib.import_module(home), attribute)


def replaced(name: str, *modules: str) -> Any:
    """Return the object that a user's code or test assigned to a name in one of slime's modules.

    Searches `modules` in order for a value that differs from the served one. None if no module has one.
    """
    for module in modules:
        loaded, served = sys.modules.get(module), _AliasFinder.served.get(module, {})
        loader = getattr(getattr(loaded, "__spec__", None), "loader", None)
        if name in served and isinstance(loader, _AliasFinder) and getattr(loaded, name) is not served[name]:
            return getattr(loaded, name)
    return None


def in_force(name: str, *modules: str) -> Any:
    """Return the object that slime's code would call by this name now: a replacement in these modules, or else ours.

    slime's functions look up each other in their modules, and users replace them there.
    """
    replacement = replaced(name, *modules)
    return _ours(modules[0], name) if replacement is None else replacement


def install_slime_aliases() -> None:
    """Make `from slime.utils.types import Sample` give our type if no slime is installed. Costs nothing until used."""
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder())

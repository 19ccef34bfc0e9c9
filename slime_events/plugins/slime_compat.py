"""Aliases for slime's names and our own earlier ones, so that command lines, plug-ins and recorded paths work.

`from slime.utils.types import Sample` and the other imports of `SLIME_MODULES` give our types, unless a real `slime`
package is installed, which then goes first. Modules of slime that are not listed do not exist here. A folder `slime`
without an `__init__.py`, such as a clone of slime in the working directory, is no package that is installed.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

from slime_events.plugins.slime_modules import NOT_HERE, SLIME_MODULES

EARLIER_PACKAGES = {
    "slime_events.rewards.coin": "slime_events.plugins.rewards.random_reward",
    "slime_events.filters": "slime_events.plugins.filters",
    "slime_events.rewards": "slime_events.plugins.rewards",
    "slime_events.sample": "slime_events.plugins.sample",
}
"""Module names of plug-ins and recorded settings before 0.2, and their names now; a module goes before its package.

Logs keep such paths for ever.
"""


class _AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves SLIME_MODULES and EARLIER_PACKAGES. It comes first: Python takes any folder for a package.

    served: what each of slime's modules had under its names when it was made.
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
    """Whether a real `slime` is there: imported, or to be found with code of its own."""
    if (root := sys.modules.get("slime")) is not None:
        spec = root.__spec__
        return spec is None or not (isinstance(spec.loader, _AliasFinder) or _is_folder(spec))
    others = (finder for finder in sys.meta_path if not isinstance(finder, _AliasFinder))
    found = (finder.find_spec("slime", None) for finder in others)
    return any(spec is not None and not _is_folder(spec) for spec in found)


def _is_folder(spec: importlib.machinery.ModuleSpec) -> bool:
    """Whether this is a namespace package: a folder that has a package's name, and no code."""
    return spec.origin is None and spec.submodule_search_locations is not None


def _current_name(module: str) -> str | None:
    """Today's name of a module under one of EARLIER_PACKAGES; None for any other."""
    return next(
        (new + module[len(old) :] for old, new in EARLIER_PACKAGES.items() if f"{module}.".startswith(f"{old}.")), None
    )


def _ours(module: str, name: str) -> Any:
    """What SLIME_MODULES has for a name of slime's."""
    home, _, attribute = SLIME_MODULES[module][name].partition(":")
    return getattr(importlib.import_module(home), attribute)


def replaced(name: str, *modules: str) -> Any:
    """What a user's code or test has put in the place of a name in one of slime's modules, the first that has
    something else than what was served there; None where none has.
    """
    for module in modules:
        known, served = sys.modules.get(module), _AliasFinder.served.get(module, {})
        loader = getattr(getattr(known, "__spec__", None), "loader", None)
        if name in served and isinstance(loader, _AliasFinder) and getattr(known, name) is not served[name]:
            return getattr(known, name)
    return None


def in_force(name: str, *modules: str) -> Any:
    """What slime's code would call by this name now: what has replaced it in these modules of slime's, else ours.

    slime's functions look up each other in their modules, and its users replace them there.
    """
    found = replaced(name, *modules)
    return _ours(modules[0], name) if found is None else found


def install_slime_aliases() -> None:
    """Let `from slime.utils.types import Sample` give ours where no slime is installed. Costs nothing until used."""
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder())

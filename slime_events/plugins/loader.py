"""Plug points: a user's own function, found by what the command line says.

Three spellings lead to a function:

    my_project.rewards:reward_func     module, then name (dots after the colon reach into classes)
    my_project.rewards.reward_func     slime's spelling, the last dot separates
    rewards/mine.py:reward_func        a file; without `:name` the plug point's default name is looked for

The folder of the user's code (the working directory, or the file's folder) goes to the END of `sys.path`: our
packages and what is installed come first, so a module of theirs can never replace one of ours unseen. Where one bears
the name of one of our packages, `NameTaken` says which file to rename.

Plug-ins written for slime work as they are: see `slime_events/plugins/slime_compat.py`.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from schemas.errors import NameTaken, PlugPointError, PlugPointMissing
from slime_events.plugins.slime_compat import SLIME_MODULES, SLIME_PATHS, install_slime_aliases

OUR_PACKAGES = ("schemas", "storage", "slime_events", "actors", "serve_apps")
_OUR_ROOT = Path(__file__).resolve().parents[2]


def load_function(
    path: str, *, default_names: Sequence[str] = (), user_dir: str | Path | None = None
) -> Callable[..., Any]:
    """The callable that `path` names (see the module's docstring for the spellings).

    `default_names`: looked for in a file that is named without a function. `user_dir`: the folder that relative paths
    and modules are looked for in, default the working directory.

    Raises NameTaken, PlugPointMissing (no such file, module or name), or PlugPointError where importing it raised.
    """
    install_slime_aliases()
    path = SLIME_PATHS.get(path.strip(), path.strip())
    folder = Path(user_dir or Path.cwd()).resolve()
    place, _, name = path.partition(":")
    if place.endswith(".py"):
        return _from_file(place, name, default_names, folder)
    if not name:
        place, _, name = path.rpartition(".")
    if not place or not name:
        raise PlugPointMissing(
            f"{path!r} does not name a function: write module:function, package.module.function or file.py:function"
        )
    module = _import_module(place, path, folder)
    return _callable_in(module, name, path, _shadowed(module, place, folder))


def check_call(function: Callable[..., Any], takes: str, count: int, names: Iterable[str] = ()) -> None:
    """Raises PlugPointError where a function cannot be called with `count` arguments in their order and these names.

    takes: the arguments as they are written down for people. One without a signature, such as of C, is taken as it is.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * count, **dict.fromkeys(names))
    except TypeError as error:
        raise PlugPointError(f"{name_of(function)}{signature} is called with {takes}: {error}") from None


def digest_of(function: Callable[..., Any]) -> str:
    """sha256 (hex) of the source file that holds `function`, and its name in it.

    The whole file, since what a function does hangs on its helpers. Without source: of its byte code.
    """
    while isinstance(function, functools.partial):
        function = function.func
    target = inspect.unwrap(function)
    if not (inspect.isroutine(target) or inspect.isclass(target)):
        target = type(target)
    name = f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', '')}"
    try:
        source = Path(inspect.getsourcefile(target) or "").read_bytes()
    except (OSError, TypeError):
        code = getattr(target, "__code__", None)
        source = code.co_code if code is not None else repr(target).encode()
    qualname = name.rpartition(".")[2]
    return hashlib.sha256(source + b"\0" + qualname.encode()).hexdigest()


def name_of(function: Callable[..., Any]) -> str:
    """`module:qualname`, as an event and an error message say it."""
    while isinstance(function, functools.partial):
        function = function.func
    target = function if hasattr(function, "__qualname__") else type(function)
    return f"{target.__module__}:{target.__qualname__}"


def _from_file(place: str, name: str, default_names: Sequence[str], folder: Path) -> Callable[..., Any]:
    file = (folder / place).resolve()
    if not file.is_file():
        near = _nearest(file.name, (entry.name for entry in _entries(file.parent)))
        raise PlugPointMissing(f"no file {file}{near}")
    _append_to_path(file.parent)
    _append_to_path(folder)
    module = _load_file(file)
    if name:
        return _callable_in(module, name, f"{place}:{name}")
    for default in default_names:
        if callable(getattr(module, default, None)):
            return _callable_in(module, default, place)
    wanted = " or ".join(default_names) or "a function"
    raise PlugPointMissing(
        f"{file} has no {wanted}: write one, or name yours as {place}:function (there are: "
        f"{', '.join(_own_names(module)) or 'none'})"
    )


def _load_file(file: Path) -> ModuleType:
    # A name of its own, so that a file math.py or utils.py takes nobody's place in sys.modules.
    alias = f"user_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if alias in sys.modules:
        return sys.modules[alias]
    spec = importlib.util.spec_from_file_location(alias, file)
    if spec is None or spec.loader is None:
        raise PlugPointMissing(f"{file} cannot be loaded as a Python module: give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[alias]
        raise _import_failed(str(file), error) from error
    return module


def _import_module(place: str, path: str, folder: Path) -> ModuleType:
    top = place.partition(".")[0]
    _append_to_path(folder)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(error.name + ".")):
            raise _import_failed(place, error) from error
        near = _nearest(top, (entry.stem for entry in _entries(folder)))
        if top == "slime":
            near = f"; of slime's own paths these are here: {', '.join(sorted(SLIME_PATHS))}"
        raise PlugPointMissing(
            f"no module {error.name!r} for {path!r}: looked in what is installed and in {folder}{near}"
        ) from None
    except (Exception, SystemExit) as error:
        raise _import_failed(place, error) from error


def _shadowed(module: ModuleType, place: str, folder: Path) -> str:
    """What to say when an installed module was found in place of the user's."""
    theirs = folder / (place.replace(".", "/") + ".py")
    found = getattr(module, "__file__", None)
    if not theirs.is_file() or found is None or theirs.samefile(found):
        return ""
    return f" (your {theirs} is hidden by it: write {theirs.relative_to(folder)}:function)"


def _callable_in(module: ModuleType, name: str, path: str, hint: str = "") -> Callable[..., Any]:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = _nearest(part, _own_names(found))
            if module.__name__ in SLIME_MODULES:
                near = f"; of slime's own paths these are here: {', '.join(sorted(SLIME_PATHS))}"
            where = getattr(module, "__file__", None) or module.__name__
            raise PlugPointMissing(f"{path!r}: {where} has no {part!r}{near}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise PlugPointMissing(f"{path!r} is a {type(found).__name__}, not a function")
    result: Callable[..., Any] = found
    return result


def _append_to_path(folder: Path) -> None:
    for name in OUR_PACKAGES:
        for taken in (folder / f"{name}.py", folder / name):
            if _is_module(taken) and not _is_ours(taken):
                raise _name_taken(taken)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _is_module(place: Path) -> bool:
    return place.is_file() or (place.is_dir() and any(place.glob("*.py")))


def _is_ours(place: Path) -> bool:
    return place.resolve() == _OUR_ROOT / place.name


def _name_taken(place: Path) -> NameTaken:
    kind = "folder" if place.is_dir() else "file"
    return NameTaken(
        f"your {kind} {place} has the name of our package {place.stem!r}, so `import {place.stem}` would not mean "
        f"yours: rename it, for example to my_{place.name}, and the imports that use it"
    )


def _import_failed(place: str, error: BaseException) -> PlugPointError:
    hint = ""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == "slime":
        here = sorted(name for name, members in SLIME_MODULES.items() if members)
        hint = f" (of slime's modules these are here: {', '.join(here)})"
    return PlugPointError(f"importing {place} raised {type(error).__name__}: {error}{hint}")


def _nearest(wanted: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(wanted, sorted(set(names)), n=3, cutoff=0.5)
    return f"; nearest: {', '.join(near)}" if near else ""


def _entries(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if _is_module(entry)] if folder.is_dir() else []


def _own_names(found: Any) -> list[str]:
    return [name for name, value in vars(found).items() if callable(value) and not name.startswith("_")]

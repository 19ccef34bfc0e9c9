"""The plugin loader: finds a user's function by its name on the command line.

Three spellings name a function:

    my_project.rewards:reward_func     module, then name (dots after the colon reach into classes)
    my_project.rewards.reward_func     slime's spelling, the last dot separates
    rewards/mine.py:reward_func        a file; without `:name` the plug point's default name is looked for

The folder of the user's code (the working directory, or the file's folder) goes to the END of `sys.path`: our packages
and installed ones come first, so a user's module never silently replaces one of ours. If a module has the name of one
of our packages, `NameTaken` names the file to rename.

Plug-ins written for slime work unchanged: see `slime_events/plugins/slime/aliases.py`.
"""

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from schemas.errors import NameTaken, PlugPointError, PlugPointMissing
from schemas.text import raised_text
from schemas.trust import check_trusted
from slime_events.plugins.slime.aliases import install_slime_aliases
from slime_events.plugins.slime.modules import NOT_HERE, SLIME_MODULES, SLIME_PATHS

OUR_PACKAGES = ("schemas", "storage", "slime_events", "actors", "serve_apps")
USER_FOLDER = "SLIME_EVENTS_USER_FOLDER"
"""Environment variable for processes on other machines: the launcher's working directory."""
_OUR_ROOT = Path(__file__).resolve().parents[2]
_NOT_THEIRS = tuple(
    f"{folder}{os.sep}"
    for folder in (*map(sysconfig.get_paths().get, ("stdlib", "purelib")), *(_OUR_ROOT / name for name in OUR_PACKAGES))
)
_SLIME_HINT = f"; available paths of slime: {', '.join(sorted(SLIME_PATHS))}"


def load_function(
    path: str, *, default_names: Sequence[str] = (), user_dir: str | Path | None = None
) -> Callable[..., Any]:
    """Return the callable that `path` names (see the module's docstring for the spellings).

    If `path` is a file without a function, the names in `default_names` are tried. `user_dir` is the folder of relative
    paths and modules; by default `USER_FOLDER`, or else the working directory.

    Raises NameTaken, PlugPointMissing (no such file, module or name), PlugPointError if importing it raised, or
    UntrustedText if only an archive names it.
    """
    check_trusted(path)
    install_slime_aliases()
    path = SLIME_PATHS.get(path.strip(), path.strip())
    folder = Path(user_dir or os.environ.get(USER_FOLDER) or Path.cwd()).resolve()
    source, _, name = path.partition(":")
    if source.endswith(".py"):
        return _from_file(source, name, default_names, folder)
    if not name:
        source, _, name = path.rpartition(".")
        if source.endswith(".py"):
            module_name = source.removesuffix(".py")
            raise PlugPointMissing(
                f"{path!r} is half a file and half a module: write {source}:{name}, or {module_name}.{name}"
            )
    if not source or not name:
        raise PlugPointMissing(
            f"{path!r} does not name a function: write module:function, package.module.function or file.py:function"
        )
    module = _import_module(source, path, folder)
    return _callable_in(module, name, path, _shadowing_hint(module, source, folder))


def check_call(
    function: Callable[..., Any],
    takes: str,
    count: int,
    names: Iterable[str] = (),
    *,
    makes: bool = False,
    awaits: bool = False,
) -> None:
    """Raise PlugPointError if a function cannot take `count` positional arguments and the keyword arguments `names`.

    `takes` describes the arguments for the message. With `makes` a class is accepted: its objects are the result. With
    `awaits` an `async def` is accepted. A function without a signature, such as one of C, is always accepted.
    """
    name, place = name_of(function).partition(":")[2], defined_at(function)
    if inspect.isclass(function) and not makes:
        raise PlugPointError(
            f"{name}{place} is a class, but is called as a function with {takes}: name a function, or a static method "
            f"of it as {name}.method"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * count, **dict.fromkeys(names))
    except TypeError as error:
        raise PlugPointError(f"{name}{signature}{place} is called with {takes}: {error}") from None
    if inspect.iscoroutinefunction(function) and not awaits:
        raise PlugPointError(f"{name}{place} is `async def`, but is not awaited here: write `def`")


def count_taken(function: Callable[..., Any], takes: str, counts: Sequence[int]) -> int:
    """Return the number of positional arguments to call a function with: the first of `counts` that it accepts.

    If it accepts none of them, raises the PlugPointError of `check_call` for the first.
    """
    errors = []
    for count in counts:
        try:
            check_call(function, takes, count)
        except PlugPointError as error:
            errors.append(error)
        else:
            return count
    raise errors[0]


def accepted(function: Callable[..., Any], names: Iterable[str]) -> list[str]:
    """Return the names that a function takes as keyword arguments: all of them if it has `**kwargs`."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return []
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return [name for name in names if takes_any or name in parameters]


def digest_of(function: Callable[..., Any]) -> str:
    """Return the sha256 (hex) of the source file that holds `function`, and of its name in the file.

    The digest covers the whole file, since a function depends on its helpers. Without source it covers the byte code.
    """
    target = inspect.unwrap(_unpartial(function))
    if not (inspect.isroutine(target) or inspect.isclass(target)):
        target = type(target)
    try:
        source = Path(inspect.getsourcefile(target) or "").read_bytes()
    except (OSError, TypeError):
        code = getattr(target, "__code__", None)
        source = code.co_code if code is not None else repr(target).encode()
    name = getattr(target, "__qualname__", "").rpartition(".")[2]
    return hashlib.sha256(source + b"\0" + name.encode()).hexdigest()


def name_of(function: Callable[..., Any]) -> str:
    """Return `module:qualname`, for events and error messages."""
    function = _unpartial(function)
    target = function if hasattr(function, "__qualname__") else type(function)
    return f"{target.__module__}:{target.__qualname__}"


def defined_at(function: Callable[..., Any]) -> str:
    """Return ` (/home/me/own.py:12)`: where a function or class begins, for a message. Empty without source."""
    target = inspect.unwrap(_unpartial(function))
    try:
        return f" ({inspect.getsourcefile(target)}:{inspect.getsourcelines(target)[1]})"
    except (OSError, TypeError):
        return ""


def place_of(error: BaseException) -> str:
    """Return ` (file.py:12 in name)`: the line that raised the error, for a message. Empty without a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""


def _unpartial(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _from_file(source: str, name: str, default_names: Sequence[str], folder: Path) -> Callable[..., Any]:
    file = (folder / source).resolve()
    if not file.is_file():
        near = _nearest(file.name, (entry.name for entry in _modules_in(file.parent)))
        raise PlugPointMissing(f"no file {file}{near}")
    _append_to_path(file.parent)
    _append_to_path(folder)
    module = _load_file(file)
    if name:
        return _callable_in(module, name, f"{source}:{name}")
    for default in default_names:
        if callable(getattr(module, default, None)):
            return _callable_in(module, default, source)
    expected = " or ".join(default_names) or "a function"
    raise PlugPointMissing(
        f"{file} has no {expected}: write it, or name another function as {source}:function (available: "
        f"{', '.join(_functions_of(module)) or 'none'})"
    )


def _load_file(file: Path) -> ModuleType:
    # A unique name, so that a file math.py or utils.py replaces nothing in sys.modules.
    alias = f"user_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if alias in sys.modules:
        return sys.modules[alias]
    spec = importlib.util.spec_from_file_location(alias, file)
    if spec is None or spec.loader is None:
        raise PlugPointMissing(f"{file} cannot be loaded as a Python module: name a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # importing user code may raise anything
        del sys.modules[alias]
        raise _import_failed(str(file), error) from error
    return module


def _import_module(name: str, path: str, folder: Path) -> ModuleType:
    top = name.partition(".")[0]
    _append_to_path(folder)
    try:
        return importlib.import_module(name)
    except BaseException as error:  # importing user code may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise _import_failed(name, error) from error
        if missing in NOT_HERE:
            raise PlugPointMissing(f"{path!r}: {error}") from None
        near = _SLIME_HINT if top == "slime" else _nearest(top, (entry.stem for entry in _modules_in(folder)))
        raise PlugPointMissing(
            f"no module {missing!r} for {path!r}: looked in the installed packages and in {folder}{near}"
        ) from None


def _shadowing_hint(module: ModuleType, name: str, folder: Path) -> str:
    """Return advice if an installed module was imported although the user has one of that name."""
    theirs = folder / (name.replace(".", "/") + ".py")
    file = getattr(module, "__file__", None)
    if not theirs.is_file() or file is None or theirs.samefile(file):
        return ""
    return f" (your {theirs} is hidden by it: write {theirs.relative_to(folder)}:function)"


def _callable_in(module: ModuleType, name: str, path: str, hint: str = "") -> Callable[..., Any]:
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            near = _SLIME_HINT if module.__name__ in SLIME_MODULES else _nearest(part, _functions_of(target))
            where = getattr(module, "__file__", None) or module.__name__
            raise PlugPointMissing(f"{path!r}: {where} has no {part!r}{near}{hint}")
        target = getattr(target, part)
    if not callable(target):
        where = getattr(module, "__file__", None) or module.__name__
        raise PlugPointMissing(f"{path!r}: {name} in {where} is of type {type(target).__name__}, not a function")
    result: Callable[..., Any] = target
    return result


def _append_to_path(folder: Path) -> None:
    for name in OUR_PACKAGES:
        for taken in (folder / f"{name}.py", folder / name):
            if _is_module(taken) and taken.resolve() != _OUR_ROOT / taken.name:
                kind = "folder" if taken.is_dir() else "file"
                raise NameTaken(
                    f"your {kind} {taken} has the name of our package {name!r}, so `import {name}` would not import "
                    f"it: rename it, for example to my_{taken.name}, and the imports that use it"
                )
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _is_module(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.glob("*.py")))


def _import_failed(name: str, error: BaseException) -> PlugPointError:
    hint = ""
    name_of_missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if name_of_missing not in NOT_HERE and name_of_missing.split(".")[0] == "slime":
        here = sorted(name for name, members in SLIME_MODULES.items() if members)
        hint = f" (available modules of slime: {', '.join(here)})"
    return PlugPointError(f"importing {name} raised {raised_text(error)}{_line_of(error)}{hint}")


def _line_of(error: BaseException) -> str:
    """Return ` (file.py:12)`: the last line of user code in the traceback. A SyntaxError names its line itself."""
    if isinstance(error, SyntaxError):
        return ""
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_absolute() and not frame.filename.startswith(_NOT_THEIRS)
    ]
    return f" ({Path(theirs[-1].filename).name}:{theirs[-1].lineno})" if theirs else ""


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(set(names)), n=3, cutoff=0.5)
    return f"; nearest: {', '.join(near)}" if near else ""


def _modules_in(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if _is_module(entry)] if folder.is_dir() else []


def _functions_of(owner: object) -> list[str]:
    return [name for name, value in vars(owner).items() if callable(value) and not name.startswith("_")]

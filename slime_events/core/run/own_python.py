"""`own_command`: the command of a Python process of ours that imports no module from the user's working directory.

`python -m` puts the working directory first on the path. A file `h2.py` there would shadow the package of that name,
which a web server imports. The loader (slime_events/plugins/loader.py) puts the folder of a user's functions last, if
they need it.
"""

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NAME = "PYTHONPATH"
_MAIN = (
    "import importlib, sys; sys.path.append(sys.argv.pop(1)); "
    "importlib.import_module(sys.argv.pop(1)).main(*sys.argv[1:])"
)


def own_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of ours. Its environment needs `own_path` too."""
    return [sys.executable, "-P", "-m", module, *arguments]


def user_command(module: str) -> list[str]:
    """Return the command of a process that calls `main` of a module of ours and runs users' code.

    Our packages come last on its path, not first, and its environment needs nothing. Further words are the arguments.
    """
    return [sys.executable, "-P", "-c", _MAIN, str(ROOT), module]


def own_path(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variable with which a process finds our packages without its working directory.

    Empty if they are installed, or on the path already.
    """
    there = [part for part in environment.get(NAME, "").split(os.pathsep) if part]
    installed = map(sysconfig.get_path, ("purelib", "platlib"))
    if str(ROOT) in (*installed, *map(os.path.abspath, there)):
        return {}
    return {NAME: os.pathsep.join([*there, str(ROOT)])}

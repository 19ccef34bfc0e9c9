"""`own_command`: a Python process of ours, in which no file of the user's folder is taken for an installed package.

Python puts the working directory first for `python -m`. A file `h2.py` there would be imported by a web server, which
asks for the package of that name. The loader (slime_events/plugins/loader.py) puts the folder of a user's functions
last, where these need it.
"""

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NAME = "PYTHONPATH"


def own_command(module: str, *arguments: str) -> list[str]:
    """Runs a module of ours. Its environment needs `own_path` too."""
    return [sys.executable, "-P", "-m", module, *arguments]


def own_path(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """By which a process finds our packages without its working directory; empty where they are installed or found
    already. given: the environment that is there.
    """
    there = [part for part in given.get(NAME, "").split(os.pathsep) if part]
    installed = map(sysconfig.get_path, ("purelib", "platlib"))
    if str(ROOT) in (*installed, *map(os.path.abspath, there)):
        return {}
    return {NAME: os.pathsep.join([*there, str(ROOT)])}

"""`Toolkit`: the compilers on a machine with GPUs. SGLang compiles some kernels when an engine first starts.

SGLang looks for nvcc and its headers under CUDA_HOME, beside an nvcc on PATH and in /usr/local/cuda, and for a C++
compiler. pip's wheels contain nvcc too, in a folder that SGLang does not search.
"""

import os
import shutil
import site
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from schemas.doc import doc

USUAL = Path("/usr/local/cuda")
WHOLE = ("bin/nvcc", "include/cuda_runtime.h")
"""Files that a usable toolkit has."""
COMPILERS = ("g++", "c++", "clang++")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The CUDA toolkit and C++ compiler of a machine."""

    home: Annotated[Path | None, doc("folder with nvcc and headers; None: there is none")]
    is_found: Annotated[bool, doc("engines find `home` without CUDA_HOME")] = False
    compiler: Annotated[str | None, doc("path of the C++ compiler; None: there is none")] = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that a process needs to find the toolkit."""
        return {} if self.home is None or self.is_found else {"CUDA_HOME": str(self.home)}

    def missing(self) -> list[tuple[str, str]]:
        """Return each missing part, and what to do."""
        missing = []
        if self.home is None:
            mend = "install NVIDIA's CUDA toolkit (nvcc and its headers), or set CUDA_HOME to its folder"
            missing.append(("there is no CUDA toolkit", mend))
        if self.compiler is None:
            missing.append(("there is no C++ compiler", "install g++ (Debian and Ubuntu: apt-get install g++)"))
        return missing


def find_toolkit(environment: Mapping[str, str] = os.environ, wheels: Iterable[Path] | None = None) -> Toolkit:
    """Return the toolkit of this machine. wheels: folders of pip's wheels; default: of this Python."""
    path = environment.get("PATH")
    on_path = shutil.which("nvcc", path=path)
    candidates = [Path(value) for name in ("CUDA_HOME", "CUDA_PATH") if (value := environment.get(name))]
    candidates += [Path(on_path).resolve().parents[1]] if on_path else []
    home = next((folder for folder in (*candidates, USUAL) if _is_whole(folder)), None)
    is_found = home is not None
    if home is None and not candidates:  # do not replace a user's CUDA_HOME
        home = next(filter(_is_whole, _wheels() if wheels is None else wheels), None)
    named = environment.get("CXX", "").split()
    compiler = next((path_ for name in (*named[:1], *COMPILERS) if (path_ := shutil.which(name, path=path))), None)
    return Toolkit(home, is_found, compiler)


def _is_whole(folder: Path) -> bool:
    return all((folder / name).is_file() for name in WHOLE)


def _wheels() -> Iterator[Path]:
    for packages in dict.fromkeys([sysconfig.get_path("purelib"), *site.getsitepackages()]):
        yield from sorted(Path(packages, "nvidia").glob("*"))

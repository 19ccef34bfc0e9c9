"""`Toolkit`: what compiles kernels on a machine with GPUs. SGLang compiles some of its own when an engine first starts.

It looks for nvcc and its headers under CUDA_HOME, beside an nvcc on PATH and in /usr/local/cuda, and for a C++
compiler. pip's wheels bring nvcc too, in a folder that nothing finds by itself.
"""

import os
import shutil
import site
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

USUAL = Path("/usr/local/cuda")
WHOLE = ("bin/nvcc", "include/cuda_runtime.h")
"""Files of a toolkit that can compile."""
COMPILERS = ("g++", "c++", "clang++")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """home: a folder with nvcc and headers. is_found: engines find it by themselves, without CUDA_HOME. compiler: of
    C++; each None where there is none.
    """

    home: Path | None
    is_found: bool = False
    compiler: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find it."""
        return {} if self.home is None or self.is_found else {"CUDA_HOME": str(self.home)}

    def missing(self) -> list[tuple[str, str]]:
        """What is not there, and what to do."""
        found = []
        if self.home is None:
            mend = "install NVIDIA's CUDA toolkit (nvcc and its headers), or set CUDA_HOME to where it is"
            found.append(("there is no CUDA toolkit", mend))
        if self.compiler is None:
            found.append(("there is no C++ compiler", "install g++ (Debian and Ubuntu: apt-get install g++)"))
        return found


def find_toolkit(environment: Mapping[str, str] = os.environ, wheels: Iterable[Path] | None = None) -> Toolkit:
    """That of this machine. wheels: folders of pip's; by default of this Python."""
    path = environment.get("PATH")
    on_path = shutil.which("nvcc", path=path)
    known = [Path(given) for name in ("CUDA_HOME", "CUDA_PATH") if (given := environment.get(name))]
    known += [Path(on_path).resolve().parents[1]] if on_path else []
    home = next((folder for folder in (*known, USUAL) if _is_whole(folder)), None)
    is_found = home is not None
    if home is None and not known:  # a CUDA_HOME of the user's stays
        home = next(filter(_is_whole, _wheels() if wheels is None else wheels), None)
    named = environment.get("CXX", "").split()
    compiler = next((found for name in (*named[:1], *COMPILERS) if (found := shutil.which(name, path=path))), None)
    return Toolkit(home, is_found, compiler)


def _is_whole(folder: Path) -> bool:
    return all((folder / name).is_file() for name in WHOLE)


def _wheels() -> Iterator[Path]:
    for packages in dict.fromkeys([sysconfig.get_path("purelib"), *site.getsitepackages()]):
        yield from sorted(Path(packages, "nvidia").glob("*"))

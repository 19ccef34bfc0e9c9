"""`check_files`: a large package without importing it: every file as it was installed, every package that it imports.

SGLang and Megatron-core take some twenty seconds to import, nearly all of it for code that works once it is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata, util

from slime_events.app.cli.checks import Check, Outcome

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
"""Top-level packages that are there after the import, without those that only others of them ask for."""


def check_files(name: str, imports: Sequence[str], mend: str) -> Check:
    """The distribution's version, whether its files are as long as its record says, and whether `imports` are there."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return Check(name, Outcome.FAIL, "not installed", mend)
    if missing := [package for package in imports if util.find_spec(package) is None]:
        return Check(name, Outcome.FAIL, f"{found.version}, and it imports {', '.join(missing)}: not installed", mend)
    files = found.files or []
    torn = [file for file in files if file.size is not None and _length(file) != file.size]
    if torn or not files:
        what = f"{len(torn)} of {len(files)} files are not as they were installed" if files else "without its files"
        first = f", the first is {torn[0]}" if torn else ""
        return Check(name, Outcome.FAIL, f"{found.version}, {what}{first}", mend)
    return Check(name, Outcome.OK, f"{found.version}, {len(files):,} files whole")


def _length(file: metadata.PackagePath) -> int:
    """In bytes; -1 for one that is not there."""
    try:
        return int(file.locate().stat().st_size)  # type: ignore[attr-defined]
    except OSError:
        return -1

"""Read the settings of the installed SGLang and Megatron-core from their source.

Importing the packages takes seconds and loads torch. Parsing takes about 15 ms, and happens only if a flag needs it.
"""

import ast
import functools
import gc
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from schemas.doc import doc
from schemas.errors import MissingPart
from slime_events.core.config.values import ValueType, of_source

_MEGATRON_CONFIGS = {
    "transformer/transformer_config.py": ("TransformerConfig", "MLATransformerConfig"),
    "model_parallel_config.py": ("ModelParallelConfig",),
    "optimizer/optimizer_config.py": ("OptimizerConfig",),
    "distributed/distributed_data_parallel_config.py": ("DistributedDataParallelConfig",),
}


@dataclass(frozen=True, slots=True)
class InstalledField:
    """A field of another package's settings."""

    name: str
    owner: Annotated[str, doc("name of the field's class")]
    annotation: Annotated[str, doc("annotation in the source, as text")]
    type: Annotated[ValueType | None, doc("type of the value; None: a command line cannot give it")]
    names: Annotated[tuple[str, ...], doc("command line names, without leading dashes")]


@functools.cache
def megatron_fields() -> dict[str, InstalledField]:
    """Return megatron-core's config fields by name, of its four config classes."""
    root = _package("megatron.core", "pip install megatron-core")
    fields: dict[str, InstalledField] = {}
    for path, owners in _MEGATRON_CONFIGS.items():
        for field in _class_fields(root / path):
            if field.owner in owners:
                fields.setdefault(field.name, field)
    return fields


@functools.cache
def sglang_fields() -> dict[str, InstalledField]:
    """Return the fields of SGLang's ServerArgs by each command line name, with underscores.

    Newer SGLang releases assemble ServerArgs from a class per topic in a folder; older ones have a single class.
    """
    root = _package("sglang", "pip install sglang") / "srt"
    fields: dict[str, InstalledField] = {}
    for path in (root / "server_args.py", *sorted((root / "arg_groups" / "fields").glob("*.py"))):
        for field in _class_fields(path):
            if path.name != "server_args.py" or field.owner == "ServerArgs":
                for name in field.names:
                    fields.setdefault(name.replace("-", "_"), field)
    return fields


def _package(name: str, cure: str) -> Path:
    spec = importlib.util.find_spec(name) if importlib.util.find_spec(name.partition(".")[0]) else None
    if spec is None or not spec.submodule_search_locations:
        raise MissingPart(f"The package {name} is not installed, so its flags cannot be read: {cure}.")
    return Path(next(iter(spec.submodule_search_locations)))


def _class_fields(path: Path) -> Iterator[InstalledField]:
    classes = (top for top in parsed(path).body if isinstance(top, ast.ClassDef)) if path.exists() else ()
    for top in classes:
        for line in top.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id[0] != "_":
                yield _field(top.name, line.target.id, line.annotation)


def parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree, parsed with the garbage collector off.

    Python before 3.11.8 has a single recursion counter for all parsing (python/cpython#106905): a destructor that
    parses, for example to print a traceback, raises SystemError here.
    """
    source = path.read_text(encoding="utf-8")
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if collects:
            gc.enable()


def _field(owner: str, name: str, annotation: ast.expr) -> InstalledField:
    inner, names = annotation, [name]
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple):
        head = ast.unparse(annotation.value)
        if head in ("A", "Annotated"):
            inner = annotation.slice.elts[0]
            for extra in annotation.slice.elts[1:]:
                names += _command_line_names(extra)
    return InstalledField(name, owner, ast.unparse(inner), of_source(inner), tuple(dict.fromkeys(names)))


def _command_line_names(extra: ast.expr) -> list[str]:
    """Return the names in `cli_name="--a"` and `aliases=["--b"]` of SGLang's field metadata."""
    if not isinstance(extra, ast.Call):
        return []
    texts = (
        node.value
        for keyword in extra.keywords
        if keyword.arg in ("cli_name", "aliases")
        for node in ast.walk(keyword.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return [text.lstrip("-") for text in texts]

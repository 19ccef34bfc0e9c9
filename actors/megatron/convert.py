"""`convert`: write a folder of weights in another format, by copying ranges of bytes."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.model_rules import names_of, whole_rules
from actors.megatron.families.registry import read_architecture
from actors.megatron.formats.format import Report
from actors.megatron.formats.registry import FORMATS, format_named
from actors.megatron.formats.weights import Weights, check_weights
from schemas.doc import doc
from schemas.errors import InvalidValue, NoSpace
from storage.object_store import file_errors, fsync
from storage.weights.folder_formats import FolderFormat

HEADROOM = 16 * 1024**2
"""Bytes beside the tensors: headers, tokenizer, the list of tensors."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A source and a target of `convert`."""

    source: Path
    target: Annotated[Path, doc("A new folder, which appears when it is complete.")]
    to: FolderFormat
    origin: Annotated[
        Path | None, doc("Hugging Face folder of config and tokenizer; None: the source, if it is one.")
    ] = None
    step: Annotated[int | None, doc("Iteration of a torch_dist folder; None: the newest.")] = None

    @property
    def model(self) -> Path:
        """The folder whose config.json describes the model. Raises InvalidValue."""
        if self.origin is not None:
            return self.origin
        if (self.source / "config.json").is_file():
            return self.source
        raise InvalidValue(
            f"{self.source} has no config.json: give the model's Hugging Face folder with --origin-hf-dir"
        )


def convert(conversion: Conversion, report: Report = lambda name, size: None) -> None:
    """Convert; all of the source's names and shapes are checked before anything is written.

    Raises InvalidValue if the target exists, CheckpointMismatch if the source does not fit its config or is damaged,
    NoSpace, StoreUnavailable.
    """
    target = conversion.target
    if target.exists() or target.is_symlink():
        raise InvalidValue(f"{target} exists already, and is never overwritten: remove it, or give another folder")
    source, model = FORMATS[format_named(conversion.source)], conversion.model
    architecture = read_architecture(model)
    if architecture.prediction_layers == 1 and source.predicts(conversion.source, architecture, conversion.step):
        architecture = replace(architecture, trains_prediction=True)  # else that of the model's folder is repeated
    partial = target.with_name(f".{target.name}.partial")
    with closing(source.load(conversion.source, architecture, conversion.step)) as weights:
        _check(weights, architecture, conversion)
        with file_errors(str(target)):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            try:
                FORMATS[conversion.to].save(weights, architecture, partial, model, report)
                for folder in (partial, *filter(Path.is_dir, partial.iterdir())):
                    fsync(folder)
                os.rename(partial, target)
            except BaseException:  # an interrupted conversion leaves nothing behind either
                shutil.rmtree(partial, ignore_errors=True)
                raise
            fsync(target.parent)


def total_bytes(weights: Weights) -> int:
    """Return the bytes of all tensors."""
    total = 0
    for name in weights.names:
        size = weights.dtype(name).itemsize
        for length in weights.shape(name):
            size *= length
        total += size
    return total


def _check(weights: Weights, architecture: Architecture, conversion: Conversion) -> None:
    rules = whole_rules(architecture)
    if architecture.tied:
        del rules["output_layer.weight"]
    check_weights(weights, {names[0]: rules[names[0]] for names in names_of(rules).values()}, architecture,
                  str(conversion.source))  # fmt: skip
    above = next(folder for folder in conversion.target.absolute().parents if folder.exists())
    needed, free = total_bytes(weights) + HEADROOM, shutil.disk_usage(above).free
    if needed > free:
        raise NoSpace(f"{conversion.target} needs {needed:,} bytes, but {above} has {free:,} bytes free")

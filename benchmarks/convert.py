"""Conversion of weights: its speed as a share of a plain copy of the files, and its memory in files."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figure import Better, Figure

SIZES = {"num_hidden_layers": 16, "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 32768}
SMALL = {"num_hidden_layers": 4, "hidden_size": 16, "intermediate_size": 16, "vocab_size": 16}
"""Sizes of a model that is converted first, since torch imports parts of itself on use."""
FILES = 4
"""Files of the model, of about 170 MB each."""
PROGRAM = "from benchmarks.convert import child; child()"


def measure() -> list[Figure]:
    """Convert a model of random bfloat16 weights to torch_dist and back, each in a process of its own."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = folder / "model"
        _make(model, SIZES)
        _make(folder / "small", SMALL)
        sizes = [path.stat().st_size for path in model.glob("*.safetensors")]
        copied = min(_copy(model, folder / f"copy{turn}") for turn in range(2))
        there = _child(model, folder / "there", "torch_dist", model)
        back = _child(folder / "there", folder / "back", "hf", model)
    figures = []
    for name, (seconds, memory) in (("hf to torch_dist", there), ("torch_dist to hf", back)):
        note = f"{sum(sizes) / 1e6:.0f} MB in {seconds:.2f} s; plain copy {copied:.2f} s"
        figures.append(Figure(name=name, value=copied / seconds, unit="x copy", target=0.7, note=note))
        note = f"memory that the conversion adds, {memory / 1e6:.0f} MB, by the largest file"
        value = memory / max(sizes)
        figures.append(
            Figure(name=f"{name}, memory", value=value, unit="files", target=2.0, better=Better.LOWER, note=note)
        )
    return figures


def child() -> None:
    """Convert; print the seconds and the bytes of memory that the conversion added."""
    from actors.megatron.convert import Conversion, convert
    from storage.weights.folder_formats import FolderFormat

    source, target, to, origin = (*map(Path, sys.argv[1:3]), FolderFormat(sys.argv[3]), Path(sys.argv[4]))
    small, first = origin.with_name("small"), target.with_name(f"first-{to.value}")
    convert(Conversion(small, first, FolderFormat.TORCH_DIST))
    convert(Conversion(first, first.with_name(f"{first.name}-back"), FolderFormat.HF, small))
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    convert(Conversion(source, target, to, origin))
    seconds = time.perf_counter() - begun
    print(json.dumps([seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024]))


def _child(source: Path, target: Path, to: str, origin: Path) -> tuple[float, float]:
    command = [sys.executable, "-c", PROGRAM, str(source), str(target), to, str(origin)]
    seconds, memory = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return seconds, memory


def _copy(source: Path, target: Path) -> float:
    begun = time.perf_counter()
    target.mkdir()
    for path in sorted(source.iterdir()):
        shutil.copyfile(path, target / path.name)
        with (target / path.name).open("rb") as file:
            os.fsync(file.fileno())
    return time.perf_counter() - begun


def _make(folder: Path, sizes: Mapping[str, int]) -> None:
    import torch
    from safetensors.torch import save_file

    from actors.megatron.families.model_rules import whole_rules
    from actors.megatron.families.registry import architecture_of

    folder.mkdir()
    config = {
        "architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
        **sizes,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    rules = whole_rules(architecture_of(config)).values()
    shapes = {name: shape for rule in rules for name, shape in zip(rule.names, rule.shapes, strict=True)}
    names, weight_map = list(shapes), {}
    for number in range(FILES):
        file = f"model-{number + 1:05d}-of-{FILES:05d}.safetensors"
        members = names[number * len(names) // FILES : (number + 1) * len(names) // FILES]
        save_file({name: torch.randn(shapes[name]).bfloat16() for name in members}, folder / file)
        weight_map |= dict.fromkeys(members, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")

"""Conversion of weights: its speed as a share of a plain copy of the files, and its memory in files."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figure import Better, Figure

SIZES = {"num_hidden_layers": 16, "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 32768}
SMALL = {"num_hidden_layers": 4, "hidden_size": 16, "intermediate_size": 16, "vocab_size": 16}
"""Sizes of a model that is converted first, since torch imports parts of itself on use."""
FILES = 4
"""Files of the model, of about 170 MB each."""
TURNS = 3
"""Copies and conversions of each direction."""
Turns = dict[str, list[float]]
"""Seconds of both copies and of conversions, and the bytes of memory and of the files."""
PROGRAM = "from benchmarks.convert import child; child()"


def measure() -> list[Figure]:
    """Convert a model of random bfloat16 weights to torch_dist and back, each in a process of its own.

    Each process copies and converts the same files in turn, and removes what it wrote, so that both write to memory
    that was just freed. The best of each counts. A copy is `shutil.copyfile` and an fsync of each file. Conversions end
    with the same fsync, and include all checks and the reading of headers, but not the start of Python and its imports:
    a model of a small size is converted first. The files are in the page cache. The note also has the time of a copy
    that, as the conversion does, lets the disk write while it reads: what is beyond it is the work of the conversion.
    """
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model, there = folder / "model", folder / "there"
        _make(model, SIZES)
        _make(folder / "small", SMALL)
        largest = max(path.stat().st_size for path in model.glob("*.safetensors"))
        return [
            *_figures("hf to torch_dist", largest, _child(model, there, "torch_dist", model)),
            *_figures("torch_dist to hf", largest, _child(there, folder / "back", "hf", model)),
        ]


def _figures(name: str, largest: int, turns: Turns) -> list[Figure]:
    copied, streamed, seconds = (min(turns[way]) for way in ("copied", "streamed", "converted"))
    note = (
        f"{turns['bytes'][0] / 1e6:.0f} MB; best of {TURNS}: {seconds:.2f} s, plain copy {copied:.2f} s, "
        f"copy that the disk writes meanwhile {streamed:.2f} s"
    )
    memory = turns["memory"][0]
    return [
        Figure(name=name, value=copied / seconds, unit="x copy", target=0.7, note=note),
        Figure(
            name=f"{name}, memory", value=memory / largest, unit="files", target=2.0, better=Better.LOWER,
            note=f"memory that the conversion adds, {memory / 1e6:.0f} MB, by the largest file",
        ),
    ]  # fmt: skip


def child() -> None:
    """Copy and convert in turn; print the seconds of each and the bytes of memory that conversions added."""
    from actors.megatron.convert import Conversion, convert
    from storage.weights.folder_formats import FolderFormat

    source, target, to, origin = (*map(Path, sys.argv[1:3]), FolderFormat(sys.argv[3]), Path(sys.argv[4]))
    small, first = origin.with_name("small"), target.with_name(f"first-{to.value}")
    convert(Conversion(small, first, FolderFormat.TORCH_DIST))
    convert(Conversion(first, first.with_name(f"{first.name}-back"), FolderFormat.HF, small))
    before, turns = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, Turns(copied=[], streamed=[], converted=[])
    files = sorted(path for path in source.rglob("*") if path.is_file())
    for _ in range(TURNS):
        for way, copy in (("copied", _copy), ("streamed", _stream)):
            shutil.rmtree(target, ignore_errors=True)
            turns[way].append(copy(files, target))
        shutil.rmtree(target)
        begun = time.perf_counter()
        convert(Conversion(source, target, to, origin))
        turns["converted"].append(time.perf_counter() - begun)
    turns["memory"] = [(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024]
    turns["bytes"] = [sum(path.stat().st_size for path in files)]
    print(json.dumps(turns))


def _child(source: Path, target: Path, to: str, origin: Path) -> Turns:
    command = [sys.executable, "-c", PROGRAM, str(source), str(target), to, str(origin)]
    turns: Turns = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return turns


def _copy(files: Sequence[Path], target: Path) -> float:
    begun = time.perf_counter()
    target.mkdir()
    for path in files:
        shutil.copyfile(path, target / path.name)
        with (target / path.name).open("rb") as file:
            os.fsync(file.fileno())
    return time.perf_counter() - begun


def _stream(files: Sequence[Path], target: Path) -> float:
    from storage.weights.durable_file import DurableFile
    from storage.weights.file_runs import FileRun, RunReader

    reader, begun = RunReader(), time.perf_counter()
    target.mkdir()
    for path in files:
        with DurableFile(target / path.name) as file:
            reader.copy([FileRun(path, 0, path.stat().st_size)], file)
            file.sync()
    reader.close()
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
    names, weight_map = list(shapes), dict[str, str]()
    for number in range(FILES):
        file = f"model-{number + 1:05d}-of-{FILES:05d}.safetensors"
        members = names[number * len(names) // FILES : (number + 1) * len(names) // FILES]
        save_file({name: torch.randn(shapes[name]).bfloat16() for name in members}, folder / file)
        weight_map |= dict.fromkeys(members, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")

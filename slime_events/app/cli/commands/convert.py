"""`slime-events convert`: write a model's weights in another format, with slime's names for the flags."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from schemas.errors import CheckpointMismatch, InvalidValue
from slime_events.algorithms.train_arguments import parse_train
from storage.weights.folder_formats import FolderFormat, format_of

LAYOUT = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
    "--expert-model-parallel-size",
    "--expert-tensor-parallel-size",
)
"""Flags that slime's converters take for the ranks that convert."""


def run(arguments: argparse.Namespace) -> int:
    """Convert, and print each written file and the speed. Raises InvalidValue for folders that cannot be converted."""
    try:
        return _run(arguments)
    except CheckpointMismatch as error:  # the user's folder is wrong, as `train` reports it before it starts
        raise InvalidValue(str(error)) from error


def _run(arguments: argparse.Namespace) -> int:
    from actors.megatron.convert import Conversion, convert

    named, folders = arguments.hf_checkpoint, list(arguments.folders)
    sources = [path for path in (*folders[:1], arguments.input_dir, arguments.load) if path]
    origins = [path for path in (arguments.origin_hf_dir, named if sources else None) if path]
    source = _folder(sources or [path for path in [named] if path], "SRC")
    target = _folder([path for path in (*folders[1:], arguments.save, arguments.output_dir) if path], "DST")
    origin = Path(origins[0]) if origins else None
    conversion = Conversion(source, target, _format(arguments.to, source), origin, arguments.ckpt_step)
    if arguments.flags:
        _check_flags(conversion.model, arguments.flags)
    begun, written = time.perf_counter(), 0

    def report(name: str, size: int) -> None:
        nonlocal written
        written += size
        seconds = time.perf_counter() - begun
        print(f"  {name}  {size / 1e6:,.1f} MB  ({written / 1e6 / seconds:,.0f} MB/s)", flush=True)

    print(f"{source} to {conversion.to.value}", flush=True)
    convert(conversion, report)
    print(f"{target}: {written / 1e6:,.1f} MB in {time.perf_counter() - begun:.1f} s")
    return 0


def _folder(words: list[str], name: str) -> Path:
    """Return the only folder. Raises InvalidValue."""
    if len(words) != 1:
        raise InvalidValue(
            f"{name} is {'set twice' if words else 'missing'}: slime-events convert SRC DST, or slime's flags "
            "--hf-checkpoint SRC --save DST, --input-dir SRC --output-dir DST"
        )
    return Path(words[0])


def _format(name: str | None, source: Path) -> FolderFormat:
    """Return the format to write: by default the other of hf and torch_dist."""
    if name is not None and name not in ("hf", "torch_dist"):
        raise InvalidValue(f"--to {name} is wrong: give hf or torch_dist")
    if name is not None:
        return FolderFormat(name)
    return FolderFormat.TORCH_DIST if format_of(source) is FolderFormat.HF else FolderFormat.HF


def _check_flags(model: Path, words: Sequence[str]) -> None:
    """Compare slime's MODEL_ARGS with config.json. Raises CheckpointMismatch; InvalidValue for other flags."""
    from actors.megatron.families.registry import read_architecture

    architecture = read_architecture(model)
    words, ranks = _without_layout(words)
    whole = ["--hf-checkpoint", str(model), "--prompt-data", "none", "--num-rollout", "1", "--rm-type", "math"]
    plain, settings = parse_train(whole).settings, parse_train([*whole, *words]).settings
    if replace(settings, trainer=replace(settings.trainer, megatron=plain.trainer.megatron)) != plain:
        raise InvalidValue(f"{' '.join(words)}: convert takes only flags of the model, such as --num-layers")
    architecture.check_flags(settings.trainer.megatron)  # MODEL_ARGS also say how a model runs, which changes nothing
    if ranks:
        print(f"note: {', '.join(ranks)}: no effect; every layout reads the same torch_dist folder.", flush=True)


def _without_layout(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words without flags of parallelism and their values, and these flags."""
    left, rest, ranks = list(words), list[str](), list[str]()
    while left:
        word = left.pop(0)
        if word.partition("=")[0] not in LAYOUT:
            rest.append(word)
            continue
        ranks.append(word.partition("=")[0])
        if "=" not in word and left:
            left.pop(0)
    return rest, ranks

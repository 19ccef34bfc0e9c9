"""Measure the share of a model's bytes that each rank reads when it loads with two tensor or pipeline parallel ranks.

Two processes have a trainer each, and load the same random Qwen3 (float32, embeddings not tied) from a Hugging Face
folder, from a torch_dist folder, and from a checkpoint with the optimizer that a trainer of one rank saved. The kernel
counts the bytes that a process reads (`rchar` in /proc/self/io), which
include headers and lists of tensors, but no reading ahead. The larger of both ranks counts. This number does not depend
on other work on the machine.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.figure import Better, Figure
from tests.megatron.ranks import agree
from tests.megatron.tiny import make_batch, make_model, settings_for
from tests.megatron.two_processes import run_two

SIZES: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 768, "vocab_size": 4096}
LAYOUTS: dict[str, dict[str, Any]] = {
    "TP 2": {"tensor_model_parallel_size": 2},
    "PP 2": {"pipeline_model_parallel_size": 2},
}
FORMATS = ("hf", "torch_dist", "own checkpoint")
DIGESTS = "digests.json"
"""Digests of the checkpoint's weights and optimizer."""
DEADLINE_S = 280


def measure() -> list[Figure]:
    """Return the share of each format and layout."""
    from actors.megatron.convert import Conversion, convert, total_bytes
    from actors.megatron.families.registry import read_architecture
    from actors.megatron.formats.registry import open_weights
    from storage.weights.folder_formats import FolderFormat

    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_model(folder / "hf", tied=False, **SIZES)
        convert(Conversion(folder / "hf", folder / "torch_dist", FolderFormat.TORCH_DIST))
        whole = dict.fromkeys(FORMATS, total_bytes(open_weights(folder / "hf", read_architecture(folder / "hf"))))
        whole["own checkpoint"] = _save(folder)
        run_two("benchmarks.load_share", folder, folder)
        ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    return [_figure(format_, layout, [rank[f"{format_}, {layout}"] for rank in ranks], whole[format_])
            for format_ in FORMATS for layout in LAYOUTS]  # fmt: skip


def _save(folder: Path) -> int:
    """Train a step, and save a checkpoint and its digests; return the bytes of its tensors."""
    from actors.megatron.rank import TrainerRank
    from actors.trainer.ranks import rendezvous_address
    from slime_events.core.config.algorithm import AlgorithmSettings

    trainer = TrainerRank(settings_for(folder / "hf"), AlgorithmSettings(), 0, 1, rendezvous_address())
    try:
        trainer.train(make_batch())
        trainer.save_checkpoint(folder / "own checkpoint")
        (folder / DIGESTS).write_text(json.dumps([trainer.weights_digest(), trainer.optimizer_digest()]))
    finally:
        trainer.close()
    return sum(path.stat().st_size for path in (folder / "own checkpoint").glob("*.distcp"))


def _figure(format_: str, layout: str, taken: list[int], whole: int) -> Figure:
    read = " and ".join(f"{count / 1e6:.2f}" for count in taken)
    return Figure(
        name=f"bytes a rank reads, {format_}, {layout}", value=max(taken) / whole, unit="share", target=0.6,
        better=Better.LOWER, note=f"{read} MB of {whole / 1e6:.2f} MB",
    )  # fmt: skip


def main() -> None:
    """Load as a rank; the words of the process are `models out rank`."""
    from actors.megatron.rank import TrainerRank
    from actors.megatron.weights import load_hf_weights
    from slime_events.core.config.algorithm import AlgorithmSettings

    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)  # a rank that hangs prints where
    models, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    taken = {}
    for layout, changes in LAYOUTS.items():
        settings = settings_for(models / "hf", **changes)
        trainer = TrainerRank(settings, AlgorithmSettings(), rank, 2, agree(out / f"{layout}.master", rank))
        begun, saved = trainer.weights_digest(), json.loads((models / DIGESTS).read_text())
        for name in FORMATS:
            trainer.train(make_batch(1))
            before, trainee = _bytes_read(), trainer.trainee
            if name == "own checkpoint":
                trainer.load_checkpoint(models / name)
            else:
                load_hf_weights(trainee.model, trainee.architecture, models / name, trainer.place)
            taken[f"{name}, {layout}"] = _bytes_read() - before
            loaded = [trainer.weights_digest(), trainer.optimizer_digest()]
            if loaded != saved if name == "own checkpoint" else loaded[0] != begun:
                raise AssertionError(f"{name}, {layout}: other weights are loaded than were saved")
        trainer.close()
    (out / f"rank{rank}.json").write_text(json.dumps(taken))


def _bytes_read() -> int:
    """Return the bytes that this process has read by system calls."""
    lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


if __name__ == "__main__":
    main()

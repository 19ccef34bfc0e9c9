"""`Comparison`: a layout beside one rank."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from safetensors.torch import load_file

from schemas.doc import doc
from tests.harness.layouts.combinations import VARIATIONS, Combination
from tests.harness.layouts.ranks import JOB
from tests.megatron.tiny import make_model
from tests.megatron.two_processes import RankPair

LIMIT = 1e-5
"""Largest difference that is rounding."""
LAYERS = {"deepseek_v2_dense": 2}
"""Layers of a family's model, if they are not 4."""
COMMON = {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 64, "clip_grad": 0.0, "adam_eps": 1e-4}
"""Several micro batches. With Adam's usual epsilon, a gradient that is nothing but rounding would move its weight by a
whole learning rate."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A row: the largest differences, or a text."""

    combination: Combination
    text: Annotated[str, doc("the trainer's refusal, or the end of a failure; empty if there are figures")] = ""
    refused: bool = False
    loss: float = 0.0
    norm: float = 0.0
    gradient: float = 0.0
    worst: Annotated[str, doc("tensor with the largest difference of gradients")] = ""
    weight: float = 0.0
    repeats: Annotated[bool, doc("a second run, and each rank, have the same digests")] = False

    @property
    def is_good(self) -> bool:
        """Whether all differences are rounding. A refusal is good: nothing is wrong in silence."""
        if self.text:
            return self.refused
        return self.repeats and max(self.loss, self.norm, self.gradient, self.weight) <= LIMIT


class Bench:
    """Runs combinations on processes that are started once. folder: for models and results."""

    def __init__(self, folder: Path, pair: RankPair) -> None:
        self._folder, self._pair = folder, pair
        self._alone: dict[tuple[str, str], Path] = {}

    def compare(self, combination: Combination) -> Comparison:
        """Run one combination, and one rank if it has not run yet."""
        key = combination.family, combination.variation
        try:
            if key not in self._alone:
                self._alone[key] = self._run(Combination(combination.family, variation=combination.variation))
            together = self._run(combination)
        except AssertionError as error:  # a process ended: the text has the end of each log
            return Comparison(combination, str(error).strip().rpartition("\n")[2] or "a process ended")
        return compared(combination, self._alone[key], together)

    def _run(self, combination: Combination) -> Path:
        model = self._folder / combination.family
        layers = LAYERS.get(combination.family, 4)
        if not model.exists():
            make_model(model, combination.family, tied=combination.family == "qwen3", num_hidden_layers=layers)
        out = self._folder / f"{len(list(self._folder.iterdir()))}"
        out.mkdir()
        (out / JOB).write_text(json.dumps(job_of(combination)))
        self._pair.run("tests.harness.layouts.ranks", model, out)
        return out


def job_of(combination: Combination) -> dict[str, Any]:
    """Return what `tests.harness.layouts.ranks` reads."""
    variation, settings = VARIATIONS[combination.variation], combination.settings
    megatron = {**settings.pop("megatron"), **variation.megatron}
    return {
        "ranks": combination.ranks,
        "settings": COMMON | variation.settings | settings | {"megatron": megatron},
        "algorithm": variation.algorithm,
    }


def compared(combination: Combination, alone: Path, together: Path) -> Comparison:
    """Return the comparison of two folders of results."""
    single = _figures(alone, 1)[0][0]
    every = _figures(together, combination.ranks)
    first, _ = every[0]
    for figures in (single, first):
        if "refused" in figures:
            return Comparison(combination, figures["refused"], refused=True)
    gradient, worst = _apart(alone / "gradients.safetensors", together / "gradients.safetensors")
    return Comparison(
        combination,
        loss=max(abs(a - b) for a, b in zip(single["loss"], first["loss"], strict=True)),
        norm=max(abs(a - b) / a for a, b in zip(single["grad_norm"], first["grad_norm"], strict=True)),
        gradient=gradient,
        worst=worst,
        weight=_apart(alone / "weights.safetensors", together / "weights.safetensors")[0],
        repeats=all(figures == first for turns in every for figures in turns),
    )


def _figures(folder: Path, ranks: int) -> list[list[dict[str, Any]]]:
    """Return the figures of both runs, by rank."""
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def _apart(left: Path, right: Path) -> tuple[float, str]:
    """Return the largest difference, and the tensor that has it."""
    ours, theirs = load_file(left), load_file(right)
    if ours.keys() != theirs.keys():
        return float("inf"), ", ".join(sorted(ours.keys() ^ theirs.keys()))
    return max(((ours[name] - theirs[name]).abs().max().item(), name) for name in ours)

"""The program of each process of `test_expert_checkpoints`: checkpoints continue on another number of ranks."""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors.torch import save_file

from actors.megatron.rank import TrainerRank
from schemas.doc import doc
from slime_events.core.config.algorithm import AlgorithmSettings
from tests.megatron.expert_ranks import EXPERTS, SHARED, SOME
from tests.megatron.pipeline_ranks import PIPELINE, WHOLE, digests
from tests.megatron.prediction_ranks import APART, TENSOR
from tests.megatron.ranks import agree
from tests.megatron.tiny import make_batch, settings_for


@dataclass(frozen=True)
class Moved:
    """A model that is trained on one rank and on several ranks of experts."""

    several: Annotated[Mapping[str, Any], doc("settings of several ranks")]
    alone: Annotated[Mapping[str, Any], doc("settings of one rank")] = field(default_factory=dict)
    both: Annotated[Mapping[str, Any], doc("settings of both")] = field(default_factory=dict)
    model: str = "qwen3_moe"
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    ranks: Annotated[int, doc("number of the several ranks")] = 2


PRECISE = {"adam_eps": 1e-3}
"""With Adam's usual epsilon, a gradient that is 0 but for rounding would move a weight as far as any other."""
BF16 = PRECISE | {"bf16": True}
PARTS = {"megatron": SHARED["megatron"] | {"expert_tensor_parallel_size": 2}}
TWO = {"shared, bfloat16": Moved(SHARED, both=BF16)}
"""Two ranks, with a state that is divided on them and not on one."""
MORE = {
    "whole": Moved(EXPERTS),
    "critic": Moved(EXPERTS, both={"critic_lr": 2e-3}, algorithm={"advantage_estimator": "ppo"}),
    "some experts": Moved(EXPERTS, WHOLE, BF16 | SOME),
    "only experts": Moved(SHARED, WHOLE, {"only_train_params_name_list": [r"experts\."]}),
    "no experts": Moved(EXPERTS, both={"freeze_params_name_list": [r"experts\."]}),
    "dense layers": Moved(SHARED, both=BF16, model="glm4_moe"),
    "an expert each": Moved({"megatron": {"expert_model_parallel_size": 4}}, WHOLE, BF16, ranks=4),
    "copies": Moved(SHARED, ranks=4),
    "parts of experts": Moved(PARTS, both=BF16, ranks=4),
    "stages": Moved(PIPELINE | EXPERTS, WHOLE, ranks=4),
    "tensor": Moved(TENSOR | APART, both=PRECISE, model="deepseek_v3", ranks=4),
}
"""Further layouts, for a soak."""
CASES = TWO | MORE
CASE = "case.txt"
"""File in the folder of the ranks' results with the name of the case that they run."""


def run(models: Path, folder: Path, name: str, case: Moved, rank: int, world: int, master: str) -> dict[str, Any]:
    """Train and continue from the checkpoints in `folder`, as far as it is not done. Return each result by the numbers
    of ranks that had the checkpoint one after the other.

    - `name-1`, if `world` is 1: train a step, save the checkpoint, and train a second step.
    - `name-2-1`, if others saved `name-2`: load that, save it again as `name-2-1`, and train the second step.
    - `name-1-2-1`, if others saved this rank's checkpoint again: load `name-1-2`, and train the second step.
    """
    own = folder / f"{name}-{world}"
    begins, backs = not own.exists(), sorted(folder.glob(f"{own.name}-?"))
    others = [other for other in sorted(folder.glob(f"{name}-?")) if other != own and not again(other, world).exists()]
    settings = settings_for(
        models / case.model, clip_grad=0.0, **case.both, **(case.several if world > 1 else case.alone)
    )
    trainer = TrainerRank(settings, AlgorithmSettings(**case.algorithm), rank, world, master)
    results = dict[str, Any]()
    if begins:
        trainer.train(make_batch())
        trainer.save_checkpoint(own)
        results[own.name] = continued(trainer, own)
    for other in others:
        trainer.load_checkpoint(other)
        trainer.save_checkpoint(here := again(other, world))
        results[here.name] = continued(trainer, here)
    for back in backs:
        trainer.load_checkpoint(back)
        results[again(back, world).name] = continued(trainer, again(back, world))
    trainer.close()
    return results


def again(folder: Path, world: int) -> Path:
    """Return the folder of a checkpoint that ranks in this number save again."""
    return folder.with_name(f"{folder.name}-{world}")


def continued(trainer: TrainerRank, name: Path) -> dict[str, Any]:
    """Train the second step; write the new weights to the file `name`, and return digests and metrics."""
    begun = state(trainer)
    step = trainer.train(make_batch(1))
    exported = {name: tensor.clone() for name, tensor in trainer.export_weights()}
    if trainer.place.rank == 0:
        save_file(exported, name.with_name(f"{name.name}.safetensors"))
    metrics = {name: value for name, value in step.metrics.items() if not name.startswith("seconds")}
    return {"begun": begun, "end": state(trainer), "metrics": metrics}


def state(trainer: TrainerRank) -> list[str]:
    """Return the digests of weights, optimizer and critic, which do not depend on the layout."""
    return [*digests(trainer), trainer.critic_digest()]


def main() -> None:
    """Run a case as a rank; the words of the process are `models out rank`. The parent of `out` has checkpoints."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(280, exit=True)  # a rank that hangs prints where
    models, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    name = (out / CASE).read_text()
    case = CASES[name]
    results = run(models, out.parent, name, case, rank, case.ranks, agree(out / "master", rank))
    (out / f"rank{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()

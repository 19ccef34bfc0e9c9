"""A reference beside the policy: as a model on the GPU, and with its weights on the host between passes."""

from __future__ import annotations

import gc
import time
from unittest.mock import patch

import torch
from torch import Tensor

from actors.megatron import rank as rank_module
from actors.step.policy import REFERENCE
from tests.harness.gpu.report import Row
from tests.harness.gpu.scene import LARGE, MIDDLE, Scene, allocated, lengths_to, make_batch, one_rank, synchronize

TIMES = 4
WAYS = {"a model on the GPU": False, "weights on the host": True}


def look(scene: Scene) -> None:
    """Measure memory of the rank and seconds of a pass; its log-probs have to be the same to the bit."""
    tokens, longest = (8192, 2048) if scene.on_gpu else (128, 32)
    vocabulary = (LARGE if scene.on_gpu else MIDDLE)["vocab_size"]
    batch, outcomes = make_batch(lengths_to(tokens, longest), vocabulary), list[Tensor]()
    settings = {"bf16": scene.on_gpu, "optimizer_digest": "off", "max_tokens_per_gpu": tokens}
    for name, on_host in WAYS.items():
        gc.collect()
        before = allocated()
        with (
            patch.object(rank_module, "waits_on_host", lambda chosen=on_host: chosen),
            one_rank(scene.model("large"), {"use_kl_loss": True}, log_probs_chunk_size=1024, **settings) as rank,
        ):
            trainee, seconds, moved = rank.trainee, [], []
            figures: dict[str, float | int | str] = {"rank, GiB": allocated() - before}
            residence, indices = trainee.frozen[REFERENCE].residence, range(len(batch.samples))
            for _ in range(TIMES if scene.on_gpu else 1):
                synchronize()
                start = time.perf_counter()
                with residence.present(trainee.model) as model:
                    synchronize()
                    begun = time.perf_counter()
                    scores = trainee.scores_of(model, batch.samples, indices, 1.0)
                    synchronize()
                    ended = time.perf_counter()
                synchronize()
                moved.append(time.perf_counter() - ended + begun - start)
                seconds.append(ended - begun)
            outcomes.append(torch.cat([scores[index] for index in indices]).cpu())
            figures |= {"scoring, s": min(seconds), "moving weights, s": min(moved)}
            del model, residence, trainee
        del rank
        Row(f"reference: {name}", f"{tokens} tokens, fastest of {len(seconds)}", figures).say()
    alike = torch.equal(*outcomes)
    Row("reference: both ways", f"log-probs are {'the same to the bit' if alike else 'others'}", {}).say()

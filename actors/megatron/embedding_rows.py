"""`embedding_rows`: the embedding of an update's tokens, which the last stage of a pipeline gets from the first one."""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.utils import get_model_config

from actors.megatron.prediction import EmbeddingRows, Ints
from actors.megatron.residence import gathered_parameters
from actors.megatron.weights import EMBEDDING, named_parameters
from actors.step.place import Axis, Place


@torch.no_grad()
def embedding_rows(model: torch.nn.Module, ids: Ints, place: Place) -> EmbeddingRows | None:
    """Return the embedding of `ids` on the first and the last stage of a pipeline of several; None on other stages.

    Collective over tensor parallel ranks and stages. ids: int64 [ids], ascending, the same on all stages.
    """
    pipeline = place.group(Axis.PIPELINE)
    if 0 < pipeline.rank() < pipeline.size() - 1:
        return None
    config, on_device = get_model_config(model), torch.from_numpy(ids).to(place.device)
    rows = torch.zeros(len(ids), config.hidden_size, dtype=config.params_dtype, device=place.device)
    if pipeline.rank() == 0:
        with gathered_parameters(model):
            part = dict(named_parameters(model))[EMBEDDING]
            local = on_device - place.tensor.rank() * len(part)
            own = ((local >= 0) & (local < len(part))).nonzero().squeeze(1)
            rows[own] = part.index_select(0, local[own])
        if place.tensor.size() > 1:
            dist.all_reduce(rows, group=place.tensor)  # each row has the values of one rank, and zeros
    ends = parallel_state.get_embedding_group()
    dist.broadcast(rows, dist.get_process_group_ranks(ends)[0], group=ends)
    return EmbeddingRows(on_device, rows)

"""`VirtualStages`: the parts of a model that one rank of an interleaved pipeline has, as one module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.pipeline_parallel.schedules import get_schedule_table
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_attr_wrapped_model, get_model_config
from torch import Tensor


class VirtualStages(torch.nn.Module):
    """Layers that are not neighbours: stage v of rank r comes before stage v of rank r + 1.

    A forward pass runs one stage, which the schedule sets. Gradients, optimizer and weights are those of all stages.
    """

    def __init__(self, config: TransformerConfig, stages: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.stages = torch.nn.ModuleList(stages)
        self._current = len(stages) - 1
        self._measures = False

    def forward(self, token_ids: Tensor, *inputs: object, **options: object) -> Any:
        """Run the current stage. token_ids: int64 [1, this rank's tokens]."""
        if self._measures:
            raise _Measured(token_ids.shape[1])
        return self.stages[self._current](token_ids, *inputs, **options)

    def run_next(self, stage: object) -> None:
        """Set the stage of the next forward pass."""
        self._current = next(number for number, own in enumerate(self.stages) if own is stage)

    def lengths(self, forward: Callable[[list[int]], object], batches: Sequence[list[int]]) -> list[int]:
        """Return the number of this rank's tokens in each micro batch, without a pass through a layer.

        forward: packs a micro batch and calls this module.
        """
        return [self._length(forward, members) for members in batches]

    def _length(self, forward: Callable[[list[int]], object], members: list[int]) -> int:
        self._measures = True
        try:
            forward(members)
        except _Measured as measured:
            return measured.tokens
        finally:
            self._measures = False
        raise AssertionError("a forward pass calls the model")

    @property
    def pre_process(self) -> bool:
        """Whether the current stage has the embedding."""
        return self._of_stage(self.stages[self._current], "pre_process")

    @property
    def post_process(self) -> bool:
        """Whether the current stage has the output layer."""
        return self._of_stage(self.stages[self._current], "post_process")

    @property
    def share_embeddings_and_output_weights(self) -> bool:
        """Whether the embedding is also the output layer."""
        return self._of_stage(self.stages[0], "share_embeddings_and_output_weights")

    def shared_embedding_or_output_weight(self) -> Tensor | None:
        """Return this rank's copy of an embedding that is also the output layer, whose gradients Megatron sums."""
        for stage in self.stages:
            if self._of_stage(stage, "pre_process") or self._of_stage(stage, "post_process"):
                shared: Callable[[], Tensor] = get_attr_wrapped_model(stage, "shared_embedding_or_output_weight")
                return shared()
        return None

    def sharded_state_dict(self, **options: Any) -> dict[str, Any]:
        """Return Megatron's sharded state of each stage, whose keys in a checkpoint do not depend on the stages."""
        parts: list[Any] = list(self.stages)
        return {str(number): stage.sharded_state_dict(**options) for number, stage in enumerate(parts)}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load what `sharded_state_dict` gave."""
        for number, stage in enumerate(self.stages):
            stage.load_state_dict(state_dict[str(number)], strict=strict)

    @staticmethod
    def _of_stage(stage: torch.nn.Module, name: str) -> bool:
        value: bool = get_attr_wrapped_model(stage, name)
        return value


class _Measured(Exception):
    """Ends a forward pass before the first layer."""

    def __init__(self, tokens: int) -> None:
        super().__init__(tokens)
        self.tokens = tokens


def virtual_stages(model: torch.nn.Module) -> VirtualStages | None:
    """Return the model's virtual stages, without its wrappers; None if a rank has a single stage."""
    if get_model_config(model).virtual_pipeline_model_parallel_size is None:
        return None
    inner: VirtualStages = get_attr_wrapped_model(model, "run_next", return_model_obj=True)
    return inner


class KnownLengths(P2PCommunicator):  # type: ignore[misc]  # Megatron's class is not typed
    """Messages between the stages of an interleaved pipeline, whose shapes every rank knows before the first one.

    Megatron exchanges shapes of micro batches of different lengths in batches of messages, in which two ranks that are
    both neighbours of each other confuse them.
    """

    def __init__(self, config: TransformerConfig, lengths: Sequence[int], parts: int) -> None:
        """lengths: tokens of each micro batch on this rank. parts: virtual stages of each rank."""
        group = parallel_state.get_pipeline_model_parallel_group()
        super().__init__(pp_group=group, config=config)
        order = get_schedule_table(len(lengths), parts, config.microbatch_group_size_per_vp_stage)
        # Between the last and the first rank, the last stage of all sends nothing forward, and gets nothing back.
        around = [batch for batch, stage in order if stage != parts - 1]
        straight = [batch for batch, _ in order]
        ranks = config.tensor_model_parallel_size if config.sequence_parallel else 1
        shapes = [[length // ranks, 1, config.hidden_size] for length in lengths]
        first, last = group.rank() == 0, group.rank() == group.size() - 1
        self._forward = iter([shapes[batch] for batch in (around if first else straight)])
        self._backward = iter([shapes[batch] for batch in (around if last else straight)])

    def _communicate_shapes(
        self, tensor_send_next: object, tensor_send_prev: object, recv_prev: bool, recv_next: bool
    ) -> tuple[list[int] | None, list[int] | None]:
        return next(self._forward) if recv_prev else None, next(self._backward) if recv_next else None


def interleaved_config(parts: int) -> dict[str, object]:
    """Return fields of Megatron's config for an interleaved pipeline. parts: virtual stages of each rank."""
    if parts == 1:
        return {"virtual_pipeline_model_parallel_size": None}
    # In a batch of messages, two ranks that are both neighbours of each other would confuse them.
    return {"virtual_pipeline_model_parallel_size": parts, "overlap_p2p_comm": True, "batch_p2p_comm": False}


def passes_multiple(config: TransformerConfig) -> int:
    """Return the number that must divide the number of micro batches: 1 without an interleaved pipeline."""
    if config.virtual_pipeline_model_parallel_size is None:
        return 1
    group: int = config.microbatch_group_size_per_vp_stage
    return group


def known_lengths(config: TransformerConfig, lengths: Sequence[int], parts: int) -> dict[str, object]:
    """Return the arguments of Megatron's schedule for messages of known lengths; see `KnownLengths`."""
    groups = ProcessGroupCollection()
    groups.tp = parallel_state.get_tensor_model_parallel_group()
    groups.cp = parallel_state.get_context_parallel_group()
    groups.pp = parallel_state.get_pipeline_model_parallel_group()
    groups.embd = parallel_state.get_embedding_group(check_initialized=False)
    groups.pos_embd = parallel_state.get_position_embedding_group(check_initialized=False)
    groups.dp_cp = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return {"p2p_communicator": KnownLengths(config, lengths, parts), "pg_collection": groups}

"""`Family`: the interface of a model family. To add one, write a file here and add a line to `registry.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec

    from actors.megatron.families.architecture import Architecture
    from actors.megatron.families.prediction_names import PredictionNames
    from actors.megatron.families.rules import Rule


class Family(Protocol):
    """A model class of Hugging Face: how its config is read, its layers are built and its tensors are named.

    A launcher reads configs without torch and Megatron, so a family imports them on use.
    """

    served_tied: ClassVar[bool]
    """Whether SGLang serves a model of the class whose output layer is the embedding."""
    prediction: ClassVar[PredictionNames]
    """Names in the multi-token prediction layer of its checkpoints, if they have one."""

    def read(self, config: Mapping[str, Any], where: str) -> Architecture:
        """Return the architecture of a parsed config.json.

        Raises CheckpointMismatch, whose message begins with `where`, for a value that changes results and that the
        trainer cannot follow.
        """

    def layer_spec(self, architecture: Architecture, layer: int, *, transformer_engine: bool) -> ModuleSpec:
        """Return the spec of a layer: Transformer Engine's, or Megatron's own with `PackedAttention`.

        layer: its number in the whole model, from 0 on.
        """

    def layer_rules(self, architecture: Architecture, layer: int) -> dict[str, Rule]:
        """Return the rules of a layer's parameters by Megatron name, for both kinds of spec."""

"""`PredictionNames`: how a checkpoint names the tensors of its multi-token prediction layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc


@dataclass(frozen=True, slots=True)
class PredictionNames:
    """Names of the layer's own tensors, without `.weight`. By default those of DeepSeek V3, which GLM-4.5 has too."""

    prefix: Annotated[str | None, doc("Begin of all names; None: that of the layer after the model's last one.")] = None
    enorm: Annotated[str, doc("Norm of the embedding of the next token.")] = "enorm"
    hnorm: Annotated[str, doc("Norm of the hidden state.")] = "hnorm"
    projection: Annotated[str, doc("Projection of both, [hidden, 2 hidden].")] = "eh_proj"
    norm: Annotated[str, doc("Norm before the output layer.")] = "shared_head.norm"
    hidden_first: Annotated[bool, doc("The first half of the projection's columns is that of the hidden state.")] = (
        False
    )

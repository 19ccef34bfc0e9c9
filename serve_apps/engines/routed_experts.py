"""`ExpertShape` reads the experts that SGLang reports for a response; the hooks let it report them on a CPU.

SGLang keeps the choices of its routers in host memory beside the cache of keys and values, by slot. A finished request
gets those of all its tokens but the last, which passed no layer: also of tokens that were in the cache, since the same
weights put them there.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from schemas.arrays import pack
from schemas.doc import doc
from schemas.errors import EngineError
from schemas.rollouts import RoutedExperts
from serve_apps.engines.cpu.shared_prefixes import prefixes_of

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.state_capturer.routed_experts import RoutedExpertsCapturer

ROUTED = "routed_experts"
"""Entry of an answer's `meta_info`."""
COUNTS = ("num_experts", "n_routed_experts", "num_local_experts")
"""Names of the number of a layer's experts in config.json."""
ONE_BYTE = 256
"""Most experts whose ids fit in a byte."""


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Sizes of the choices of a model's routers."""

    layers: Annotated[int, doc("Layers of the model, also those without experts.")]
    each: Annotated[int, doc("Experts per token and layer.")]
    count: Annotated[int, doc("Experts of a layer.")]

    @classmethod
    def of(cls, config: Any) -> ExpertShape:
        """Return the shape for transformers' config of a text model. Raises EngineError if it has no experts."""
        count = next((value for name in COUNTS if (value := getattr(config, name, None))), None)
        if count is None:
            raise EngineError("enable-return-routed-experts: the model has no experts")
        return cls(int(config.num_hidden_layers), int(config.num_experts_per_tok), int(count))

    def of_answer(self, name: str, meta: Mapping[str, Any], tokens: int) -> RoutedExperts | None:
        """Return the experts of a finished response; None, with a line in the log, if they are not usable.

        The response itself is good: the trainer's routers choose for its tokens.
        """
        try:
            return self.read(meta.get(ROUTED), tokens)
        except EngineError as error:
            print(f"response {name} is recorded without experts: {error}", file=sys.stderr)
            return None

    def read(self, reported: object, tokens: int) -> RoutedExperts:
        """Return the experts of the first of `tokens` tokens of prompt and response.

        reported: base64 of int32 [tokens, layers, each]; fewer tokens are allowed, and further ones are left out.
        Raises EngineError if it is anything else.
        """
        if not isinstance(reported, str):
            raise EngineError(f"the engine reported no experts, but {type(reported).__name__}")
        try:
            data = base64.b64decode(reported, validate=True)
        except (binascii.Error, ValueError) as error:
            raise EngineError(f"the experts that the engine reported are not base64: {error}") from error
        row = self.layers * self.each
        if len(data) % (4 * row):
            raise EngineError(
                f"the engine reported {len(data)} bytes of experts, but a token has {self.layers} layers with "
                f"{self.each} numbers of 4 bytes"
            )
        ids = np.frombuffer(data, "<i4")[: tokens * row]
        if ids.size and not (ids.min() >= 0 and ids.max() < self.count):
            raise EngineError(f"the engine reported expert {ids.min()} to {ids.max()} of {self.count}")
        return RoutedExperts(pack(ids, "uint8" if self.count <= ONE_BYTE else "uint16"), self.layers, self.each)


def expert_shape(manager: TokenizerManager) -> ExpertShape | None:
    """Return what the model's routers choose; None if SGLang does not report it."""
    if not manager.server_args.enable_return_routed_experts:
        return None
    return ExpertShape.of(manager.model_config.hf_text_config)


def capture_all_tokens(
    original: Callable[..., None], capturer: RoutedExpertsCapturer, layer_id: int, topk_indices: torch.Tensor
) -> None:
    """Around hook of `RoutedExpertsCapturer.capture`, which writes row i for token i of the pass: give it a row for
    each token also in a pass that computed common prefixes once. topk_indices: [computed tokens, each].
    """
    from sglang.srt.model_executor.forward_context import get_attn_backend

    shared = prefixes_of(get_attn_backend())
    original(capturer, layer_id, topk_indices if shared is None else topk_indices.index_select(0, shared.row))


def leave_unpinned(*_: object) -> None:
    """Do nothing, in place of `_cuda_host_register`: without a GPU there is none to pin memory for."""

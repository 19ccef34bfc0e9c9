"""`fusions`: which of Megatron's fused kernels a rank uses."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from schemas.doc import doc
from schemas.errors import InvalidValue

logger = logging.getLogger(__name__)

C_COMPILERS = ("gcc", "clang")
"""Compilers that Triton looks for, unless CC names another."""
OTHER_ACTIVATION = ("use_te_activation_func", "glu_linear_offset", "activation_func_clamp_value")
"""Megatron's settings that its fused SwiGLU refuses or ignores."""


@dataclass(frozen=True, slots=True)
class FusedKernels:
    """Kernels that are installed."""

    compiled: Annotated[bool, doc("torch.compile can make kernels (Triton and a C compiler).")] = False
    gradients: Annotated[bool, doc("Apex's weight gradients.")] = False
    rope: Annotated[bool, doc("Transformer Engine's RoPE.")] = False

    @classmethod
    def of_this_machine(cls, environment: Mapping[str, str] = os.environ) -> FusedKernels:
        """Return the kernels that are installed on this machine, which has CUDA."""
        named = environment.get("CC", "").split()
        compilers = [shutil.which(name, path=environment.get("PATH")) for name in (*named[:1], *C_COMPILERS)]
        headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
        return cls(
            compiled=_is_there("triton") and any(compilers) and headers.is_file(),
            gradients=_is_there("fused_weight_gradient_mlp_cuda"),
            rope=_is_there("transformer_engine"),
        )


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def fusions(flags: Mapping[str, object], kernels: FusedKernels | None) -> dict[str, bool]:
    """Return the four fusion fields of Megatron's TransformerConfig.

    kernels: None on the CPU, which has no kernels. flags: the user's, by Megatron's names; they override the defaults.
    The defaults suit every `Architecture`, which has SwiGLU without biases. Raises InvalidValue
    if a flag requests a fusion whose kernel is missing.
    """
    there = kernels or FusedKernels()
    needs = {
        "bias_activation_fusion": (there.compiled, "Triton, a C compiler (gcc or clang) and Python's headers"),
        "gradient_accumulation_fusion": (there.gradients, "Apex with --cuda_ext (fused_weight_gradient_mlp_cuda)"),
        "apply_rope_fusion": (there.rope, "Transformer Engine"),
    }
    for name, (is_there, kernel) in needs.items():
        if kernels is not None and flags.get(name) and not is_there:
            raise InvalidValue(f"{name} needs {kernel}, which is not installed. Install it, or leave the flag out")
    if flags.get("masked_softmax_fusion"):
        logger.warning("masked_softmax_fusion has no effect: the attention kernels here have their own softmax")
    other_activation = any(flags.get(name) for name in OTHER_ACTIVATION)
    usual = {
        "bias_activation_fusion": there.compiled and not other_activation,
        "masked_softmax_fusion": False,  # belongs to Megatron's own attention, which no model here uses
        "gradient_accumulation_fusion": there.gradients,
        "apply_rope_fusion": there.rope and not flags.get("rotary_interleaved"),
    }
    return {name: bool(flags.get(name, on)) for name, on in usual.items()}

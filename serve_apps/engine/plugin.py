"""SGLang plugin (entry-point group `sglang.srt.plugins`): deterministic inference on a CPU, and a quicker decode.

With `enable_deterministic_inference` and a seed per request, a token is a function of the weights, the tokens before it
and the seed alone: a rollout that is resumed from its log goes on as if nothing had happened. SGLang 0.5.23 brings that
for accelerators. Where `SGLANG_USE_CPU_ENGINE` is not 1 nothing here touches it.

SGLang loads this in every process it starts, its spawned scheduler included, so the module imports nothing heavy.
"""

from __future__ import annotations

import os


def register() -> None:
    """Register the CPU hooks with SGLang, which applies them after this returns; a no-op on accelerators."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        return
    from sglang.srt.arg_groups import choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from serve_apps.engine.cpu import attention, linear, sampling

    if "torch_native" not in choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES:
        choices.add_deterministic_attention_backend_choices(["torch_native"])
    backend = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
    around = {
        f"{backend}._run_sdpa_forward_decode": attention.decode,
        f"{backend}._run_sdpa_forward_extend": attention.extend,
        "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply": linear.apply,
        "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head": linear.lm_head,
    }
    for target, hook in around.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    replace = {
        "sglang.srt.layers.sampler.multinomial_with_seed": sampling.multinomial_with_seed,
        "sglang.srt.batch_invariant_ops.enable_batch_invariant_mode": _kernels_are_in_place,
    }
    for target, hook in replace.items():
        HookRegistry.register(target, hook, HookType.REPLACE)


def _kernels_are_in_place(enable_bmm: bool = True) -> None:
    """SGLang's batch-invariant kernels are for accelerators; on a CPU the hooks above take their place."""

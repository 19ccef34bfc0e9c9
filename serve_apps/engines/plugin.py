"""SGLang plugin (entry-point group `sglang.srt.plugins`), loaded in every SGLang process, so it imports nothing heavy.

On every device: weight versions on every streamed piece, a cached end token, and no socket beyond the engine's own
address; received weights are checked before they are loaded. On a GPU that an engine shares: a cache whose size does
not depend on the order of starts. On a CPU: deterministic inference and memory that a resting engine gives back, which
SGLang 0.5.23 has for accelerators only, and a faster decode and prefill. With `enable_deterministic_inference` and a
seed per request, a token is a function of only the weights, the tokens before it and the seed. So a rollout that is
resumed from its log continues with the same tokens. SGLang processes that this project did not start are not changed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from serve_apps.engines.received_weights import verified, within_limit
from serve_apps.engines.shared_memory import SHARE, sized_by_total

if TYPE_CHECKING:
    from datetime import timedelta

    from sglang.srt.plugins.hook_registry import HookType
    from torch._C._distributed_c10d import Store

SWITCH = "SLIME_EVENTS_ENGINE"
"""Environment variable with the device. Our engines set it."""


def register() -> None:
    """Register the hooks with SGLang, which applies them after this returns."""
    device = os.environ.get(SWITCH)
    if device is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    updater = "sglang.srt.model_executor.model_runner_components.weight_updater"
    streamer = "sglang.srt.managers.scheduler_components.output_streamer"
    hooks: list[tuple[HookType, str, Callable[..., Any]]] = [
        (HookType.BEFORE, f"{streamer}._GenerationStreamAccumulator.to_payload", spans_on_every_piece),
        (HookType.AFTER, "sglang.srt.utils.hf_transformers.tokenizer.get_tokenizer", cache_end_token),
        (HookType.AROUND, "torch.distributed.rendezvous._create_c10d_store", store_on_one_address),
        (HookType.AROUND, f"{updater}.WeightUpdater.receive_weights_from_distributed", verified),
        (HookType.AROUND, f"{updater}.init_custom_process_group", within_limit),
    ]
    if SHARE in os.environ:
        cache = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._profile_available_bytes"
        hooks.append((HookType.AROUND, cache, sized_by_total))
    for kind, target, hook in hooks + (_cpu_hooks(HookType) if device == "cpu" else []):
        HookRegistry.register(target, hook, kind)


def _cpu_hooks(kinds: type[HookType]) -> list[tuple[HookType, str, Callable[..., Any]]]:
    from sglang.srt.arg_groups import choices

    from serve_apps.engines import routed_experts
    from serve_apps.engines.cpu import attention, layers, resting, sampling, shared_prefixes
    from slime_events.core.run.gloo_device import share_gloo_device

    share_gloo_device()
    choices.add_deterministic_attention_backend_choices(["torch_native"])
    choices.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])
    modules = "sglang.srt.layers"
    captured = "sglang.srt.state_capturer.routed_experts.RoutedExpertsCapturer"
    updater = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
    backend = f"{modules}.attention.torch_native_backend.TorchNativeAttnBackend"
    return [
        (kinds.BEFORE, f"{backend}.init_forward_metadata", attention.forget_parts),
        (kinds.BEFORE, f"{backend}.init_forward_metadata", shared_prefixes.share),
        (kinds.AROUND, f"{backend}._run_sdpa_forward_decode", attention.decode),
        (kinds.AROUND, f"{backend}._run_sdpa_forward_extend", attention.extend),
        (kinds.AROUND, f"{backend}.forward_extend", shared_prefixes.extend),
        (kinds.AROUND, f"{modules}.logits_processor.LogitsProcessor.forward", shared_prefixes.logits),
        (kinds.AROUND, f"{modules}.layernorm.RMSNorm.forward_native", layers.rms_norm),
        (kinds.AROUND, f"{modules}.rotary_embedding.base.RotaryEmbedding.forward_native", layers.rotary_embedding),
        (kinds.AROUND, f"{modules}.rotary_embedding.factory.get_rope_cpu", layers.latent_rope),
        (kinds.AROUND, f"{modules}.quantization.unquant.UnquantizedLinearMethod.apply", layers.linear),
        (kinds.AROUND, f"{modules}.logits_processor.LogitsProcessor._compute_lm_head", layers.lm_head),
        (kinds.AROUND, f"{modules}.sampler.top_k_top_p_min_p_sampling_from_probs_torch", sampling.filtered_choice),
        (kinds.REPLACE, f"{modules}.sampler.multinomial_with_seed", sampling.multinomial_with_seed),
        (kinds.REPLACE, "sglang.srt.mem_cache.pool_host.common._cuda_host_register", routed_experts.leave_unpinned),
        (kinds.AROUND, f"{captured}.capture", routed_experts.capture_all_tokens),
        (kinds.AFTER, f"{updater}.release_memory_occupation", resting.give_back),
        (kinds.REPLACE, "sglang.srt.batch_invariant_ops.enable_batch_invariant_mode", _kernels_are_in_place),
    ]


def _kernels_are_in_place(enable_bmm: bool = True) -> None:
    """Do nothing. SGLang's batch-invariant kernels are for accelerators; on a CPU the hooks above replace them."""


def store_on_one_address(
    create: Callable[..., Store], hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, *rest: Any
) -> Store:
    """Around hook of torch: create the store where SGLang's ranks meet, on only the address that they use for it.

    Without the hook it listens on every address of the machine.
    """
    if rank != 0:
        return create(hostname, port, rank, world_size, timeout, *rest)
    from torch._C._distributed_c10d import TCPStore

    listening = socket.create_server((hostname, port)).detach()
    return TCPStore(hostname, port, world_size, True, timeout, master_listen_fd=listening)


def cache_end_token(tokenizer: Any, *_: object, **__: object) -> None:
    """After hook of SGLang's `get_tokenizer`: cache the id of the end token.

    SGLang's scheduler reads the id with every token that it generates, and transformers looks it up in the vocabulary
    each time.
    """
    vars(tokenizer)["eos_token_id"] = tokenizer.eos_token_id


def spans_on_every_piece(accumulator: Any, *_: object, **__: object) -> None:
    """Before hook of the scheduler's `_GenerationStreamAccumulator.to_payload`: add weight versions to every piece.

    SGLang 0.5.23 adds them to the last piece only. A chunk goes into the log while its response still runs, and must
    name the version that made each of its tokens.
    """
    if None not in accumulator.weight_versions:
        return
    from sglang.srt.utils.weight_versions import compute_weight_version_spans

    for number, (req, versions) in enumerate(zip(accumulator.output_reqs, accumulator.weight_versions, strict=True)):
        if versions is None:
            accumulator.weight_versions[number] = compute_weight_version_spans(
                req.weight_version_events,
                current_version=accumulator.current_weight_version,
                num_output_tokens=req.send_token_offset,
            )

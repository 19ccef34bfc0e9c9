"""Launches and fragments that are not accepted, each with the reason."""

from __future__ import annotations

from tests.seeds.launch import Verdict

LINEAR = "layers with linear attention, which slime's own plug-ins build"

LAUNCHES: dict[str, str] = {
    "examples/coding_agent_rl/run_qwen36_35b_a3b_swe_8nodes": LINEAR,
    "examples/fully_async/run-qwen3.5-9B-fully_async": LINEAR,
    "examples/geo3k_vlm/run_geo3k_qwen35": f"{LINEAR}, and images",
    "scripts/run-qwen3-next-80B-A3B": LINEAR,
    "scripts/run-qwen3.5-27B": LINEAR,
    "scripts/run-glm5-744B-A40B": "layers with sparse attention, which slime's own plug-in builds",
    "scripts/run-glm4.7-30B-A3B": "8 ranks for 8 expert ranks in 2 stages, which Megatron refuses too: it needs 16",
    "examples/delta_weight_sync/run-glm4.7-30B-A3B-delta": "47 layers in 2 equal stages, which Megatron refuses too",
    "scripts/run-kimi-k2-Instruct": "the recorded command ends after four flags: it has neither data nor a model",
}
"""By the path of the script in slime's repository."""

MESSAGES: dict[str, str] = {
    "--train-backend fsdp": "the trainer is Megatron-core, which is slime's default",
    "--prefill-num-servers": "two engines that answer one request, for which no transfer of a cache works on CPUs",
    "eval_interval 50 needs eval_prompt_data": "slime too refuses evaluations without data to evaluate on",
}
"""By a part of the message that refuses a fragment."""


def reason_for(verdict: Verdict) -> str | None:
    """Return why a launch or a fragment is not accepted; None if it is no exception."""
    if verdict.name in LAUNCHES:
        return LAUNCHES[verdict.name]
    texts = [message for _, message in verdict.refusals]
    return next((reason for part, reason in MESSAGES.items() if texts and all(part in text for text in texts)), None)

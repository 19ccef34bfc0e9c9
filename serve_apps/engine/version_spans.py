"""Weight versions on every streamed piece: SGLang 0.5.23 tells them with the last one only.

A chunk goes into the log while its response still runs, and has to say exactly which version made which of its tokens.
"""

from __future__ import annotations

from typing import Any


def before_payload(accumulator: Any, *_: Any, **__: Any) -> None:
    """Before hook of the scheduler's `_GenerationStreamAccumulator.to_payload`: what is about to be streamed."""
    if None not in accumulator.weight_versions:
        return
    from sglang.srt.utils.weight_versions import compute_weight_version_spans

    for number, (req, told) in enumerate(zip(accumulator.output_reqs, accumulator.weight_versions, strict=True)):
        if told is None:
            accumulator.weight_versions[number] = compute_weight_version_spans(
                req.weight_version_events,
                current_version=accumulator.current_weight_version,
                num_output_tokens=req.send_token_offset,
            )

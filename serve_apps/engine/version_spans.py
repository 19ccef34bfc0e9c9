"""Weight versions on every streamed piece: SGLang 0.5.23 tells them with the last one only.

A chunk goes into the log while its response still runs, and has to say exactly which version made which of its tokens.
"""

from __future__ import annotations

from typing import Any


def after_accept(_: None, accumulator: Any, *, req: Any) -> None:
    """After hook of the scheduler's `_GenerationStreamAccumulator.accept`, which may or may not have taken `req`."""
    from sglang.srt.utils.weight_versions import compute_weight_version_spans

    taken = bool(accumulator.output_reqs) and accumulator.output_reqs[-1] is req
    if taken and accumulator.weight_versions[-1] is None:
        accumulator.weight_versions[-1] = compute_weight_version_spans(
            req.weight_version_events,
            current_version=accumulator.current_weight_version,
            num_output_tokens=req.send_token_offset,
        )

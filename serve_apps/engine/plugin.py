"""SGLang plugin (entry-point group `sglang.srt.plugins`): deterministic inference on a CPU.

With `enable_deterministic_inference` the noise of a token is a hash of (seed, absolute position, token id), so that a
rollout which is resumed from its log goes on as if nothing had happened. SGLang 0.5.23 brings that for accelerators;
three things are missing on a CPU and are put in here. Where `SGLANG_USE_CPU_ENGINE` is not 1 nothing is touched.

SGLang loads this in every process it starts, its spawned scheduler included, so the module imports nothing heavy.
"""

from __future__ import annotations

import os


def register() -> None:
    """Make deterministic inference work on CPU; a no-op elsewhere."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        return
    from serve_apps.engine.cpu_determinism import install

    install()

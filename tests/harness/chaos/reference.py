"""The reference run, which is not struck: made once per settings, its figures kept in the temporary folder."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from schemas.steps import StepCommitted
from tests.harness.chaos import measures
from tests.harness.chaos.aftermath import Aftermath, read_back
from tests.harness.chaos.family import Family
from tests.harness.chaos.settings import RUN, ChaosSettings
from tests.harness.chaos.supervisor import Supervisor

NANO = 1e-9


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """digests: weights by version. lengths: of the trained samples. again: tokens made that the log does not hold.

    seconds: of the whole command; seconds_per_step: median from one commit to the next.
    """

    digests: dict[int, str]
    lengths: list[int]
    again: int
    seconds: float
    seconds_per_step: float


def reference(settings: ChaosSettings) -> Reference:
    """Return it from the cache, or run it."""
    cached = Path(tempfile.gettempdir()) / "slime-events-chaos" / f"{settings.digest()}.json"
    if cached.exists():
        return msgspec.json.decode(cached.read_bytes(), type=Reference)
    print(f"reference run without kills ({settings.steps} steps) ...", file=sys.stderr, flush=True)
    figures = _run(settings)
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(msgspec.json.encode(figures))
    return figures


def _run(settings: ChaosSettings) -> Reference:
    folder = Path(tempfile.mkdtemp(prefix="slime-chaos-reference-"))
    family = Family()
    supervisor = Supervisor(settings.start(folder), settings.resume(folder), folder / "output")
    begun = time.monotonic()
    try:
        asyncio.run(supervisor.run())
        seconds = time.monotonic() - begun
        return _figures(read_back(folder / RUN), seconds)
    finally:
        family.end()
        shutil.rmtree(folder)


def _figures(after: Aftermath, seconds: float) -> Reference:
    commits = [recorded.envelope.at for recorded in after.log if isinstance(recorded.envelope.event, StepCommitted)]
    return Reference(
        digests=measures.weight_digests(after.events),
        lengths=measures.trained_lengths(after.events),
        again=after.generated - measures.tokens_in_log(after.events),
        seconds=seconds,
        seconds_per_step=statistics.median(b - a for a, b in itertools.pairwise(commits)) * NANO,
    )

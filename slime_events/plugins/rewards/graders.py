"""`Graders`: a run's graders: a pool of processes, this process for `IMMEDIATE` ones, a judge, producers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from schemas.rewards import RewardFailureKind
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.dispatch import IMMEDIATE, OUTSIDE, REMOTE, grader_name, reward_key
from slime_events.plugins.rewards.outcome import Outcome, failure, signed
from slime_events.plugins.rewards.pool import GraderPool
from slime_events.plugins.rewards.worker import InlineGrader
from slime_events.plugins.sample import Sample

if TYPE_CHECKING:  # aiohttp is imported only for runs with a judge
    from slime_events.plugins.rewards.remote import RemoteJudge


class Graders:
    """All graders of a run. Takes the arguments of `GraderPool`.

    The pool's processes start only if the run's own grader needs them, or with the first sample that does. A call whose
    samples all name `IMMEDIATE` graders needs none.
    """

    def __init__(
        self, settings: RewardSettings, *, args: Mapping[str, Any] | None = None, log: Path | None = None
    ) -> None:
        self._settings = settings
        own = grader_name(settings, Sample())
        self._is_remote, self._is_immediate = REMOTE in own or own == OUTSIDE, own in IMMEDIATE
        # The pool's processes load neither a remote judge nor a grader for rewards from outside.
        self._pool = GraderPool(
            msgspec.structs.replace(settings, rm_type=None) if self._is_remote else settings, args=args, log=log
        )
        self._inline = InlineGrader(settings)
        self._starting = asyncio.Lock()
        self._parts = contextlib.AsyncExitStack()
        self._pool_started = False
        self._judge: RemoteJudge | None = None

    async def __aenter__(self) -> Graders:
        if self._settings.rm_url:
            from slime_events.plugins.rewards.remote import RemoteJudge

            judge = RemoteJudge(self._settings.rm_url, self._settings.rm_timeout)
            self._judge = await self._parts.enter_async_context(judge)
        if not (self._is_remote or self._is_immediate):
            await self._start_pool()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._parts.aclose()

    async def _start_pool(self) -> GraderPool:
        async with self._starting:
            if not self._pool_started:
                await self._parts.enter_async_context(self._pool)
                self._pool_started = True
        return self._pool

    async def grade(self, samples: Sequence[Sample], *, evaluation: bool = False) -> list[Outcome]:
        """Grade each sample by itself. Outcomes have the samples' order. An error in a grader is an outcome."""
        if self._inline.accepts(samples):
            return self._inline.grade(samples, evaluation=evaluation)
        names = [grader_name(self._settings, sample) for sample in samples]
        if any(REMOTE in name or name == OUTSIDE for name in names):
            return list(await asyncio.gather(*(self._grade(sample, evaluation) for sample in samples)))
        return await (await self._start_pool()).grade(samples, evaluation=evaluation)

    async def grade_group(self, samples: Sequence[Sample], *, evaluation: bool = False) -> list[Outcome]:
        """Grade a group: as a whole by the user's function with --group-rm, else sample by sample."""
        if self._settings.group_rm and self._settings.custom_rm_path:
            return await (await self._start_pool()).grade_group(samples, evaluation=evaluation)
        return await self.grade(samples, evaluation=evaluation)

    async def _grade(self, sample: Sample, evaluation: bool) -> Outcome:
        name = grader_name(self._settings, sample)
        if name == OUTSIDE:
            return await self._not_sent()
        if REMOTE not in name:
            return (await (await self._start_pool()).grade([sample], evaluation=evaluation))[0]
        if self._judge is None:
            message = f"the sample's metadata names the grader {name}, but the run has no --rm-url"
            return signed(failure(RewardFailureKind.RAISED, message), name, "")
        return await self._judge.grade(name, sample, reward_key(self._settings, evaluation=evaluation))

    async def _not_sent(self) -> Outcome:
        """Return the failure of a sample whose reward no producer sends in time. An earlier reward overrides it."""
        seconds = self._settings.outside_reward_seconds
        await asyncio.sleep(seconds)
        message = f"no reward arrived within {seconds:.0f} s (--outside-reward-seconds)"
        return signed(failure(RewardFailureKind.TIMEOUT, message), OUTSIDE, "", seconds)

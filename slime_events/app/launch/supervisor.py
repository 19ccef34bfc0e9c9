"""`Supervisor`: follow a run's log and its roles to their ends, restart lost roles, fail a run that cannot continue.

A role whose process is gone is started again, because its whole state is in the log. A role that ends with an error
would end with the same error again, so it fails the run.
"""

import asyncio
import contextlib
import shutil
import time
from collections.abc import Collection, Sequence
from typing import NoReturn

from schemas.archives import ArchiveSealed
from schemas.errors import DeadlineExceeded, NoSpace, SlimeEventsError, StorageError, TrainerError, shown_text
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.trainers import Fidelity, TrainerRestored
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.app.launch.engine_processes import EngineProcesses
from slime_events.app.launch.engine_watch import EngineWatch
from slime_events.app.launch.machine_watch import MachineWatch
from slime_events.app.launch.refusal_watch import RefusalWatch, refused_prompts
from slime_events.app.launch.roles import ARCHIVIST, CONDUCTOR, GATEWAY, Roles, error_of, is_lost, reason_of
from slime_events.app.launch.run_announcement import FAIL_DEADLINE_S, announce_failure
from slime_events.app.launch.view import View
from slime_events.app.launch.zero_rewards import ZeroRewardWatch
from slime_events.core.config.settings import TrainSettings
from slime_events.core.planning.homes import MOVED
from slime_events.core.run.participant import Participant, run_events_before
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.state.keeper import StateKeeper
from slime_events.core.state.run import RunPhase, RunState
from slime_events.core.state.snapshot import Snapshots
from slime_events.loop.conductor.decide import Stall, waits_for
from slime_events.loop.conductor.outsiders import Outsiders
from slime_events.loop.conductor.plan import make_plan
from slime_events.model.foreign import describe
from slime_events.model.progress import Progress, ProgressSnapshot, disagreement
from slime_events.model.rejections import Rejections
from storage.cancellation import end_all
from storage.follow import RecordFollower
from storage.log import ForeignRecord, Recorded

LAUNCHER = "launcher"
END_DEADLINE_S = 60.0
ARCHIVE_DEADLINE_S = 10.0
CONDUCTOR_GRACE_S = 60.0
"""Seconds that the conductor, which has the same deadline for the run's progress, gets in addition to start and report.
"""
ARCHIVE_LATE_S = 60.0
"""Seconds in addition to --archive-seconds after which a late archive is reported."""
LEAST_FREE_BYTES = 16 * 1024 * 1024
LOOK_S = 0.5
READ_S = 0.25
"""Seconds between reads of the log. Only a person watches, and no step waits for it."""
FOREIGN = 10
"""Number of foreign records that are reported one by one."""
FILTERED = 10
"""Number of groups dropped by a filter before the first report: a filter is expected to drop some."""


class Supervisor:
    """Watches one incarnation of a run. worker: the launcher's participant in it."""

    def __init__(
        self,
        worker: Participant,
        roles: Roles,
        progress: Progress,
        view: View,
        settings: TrainSettings,
        folder: RunFolder,
    ) -> None:
        self._worker, self._roles, self._progress, self._view = worker, roles, progress, view
        self._settings, self._folder = settings, folder
        self._foreign, self._processes = ForeignWatch(), EngineProcesses()
        self._engines, self._rejections = EngineWatch.of(settings.engine), RejectionWatch(progress.state)
        self._refusals, self._zeros = RefusalWatch(folder, progress.state), ZeroRewardWatch(settings, folder.named)
        snapshots = Snapshots(folder.path / "snapshots" / LAUNCHER, ProgressSnapshot)
        self._keeper = StateKeeper(snapshots, settings.run.archive_url or str(folder.archive))
        self._archive = ArchiveWatch(settings.run.archive_seconds + ARCHIVE_LATE_S)
        self._restarts = Restarts(settings.run.max_deaths)
        self._machines = MachineWatch(joined=bool(settings.run.ray_address))
        self._plan = make_plan(settings.rollout, settings.evaluation, settings.trainer)
        self._stall = self._new_stall()
        self._over = False

    async def watch(self) -> None:
        """Watch until the run has finished and its roles have ended. Raises a SlimeEventsError with the reason."""
        await self._restore()
        await self._say_refused()
        try:
            await self._follow()
        finally:
            await self._say_refused()
            await self._keeper.close(self._progress)
        state = self._progress.state
        if state.phase is RunPhase.FAILED:
            await self._end(state.failure)
        if state.phase is not RunPhase.FINISHED:
            raise TrainerError(f"another launcher has resumed run {state.run}, which continues there: this one ends")
        await self._await_roles()

    async def _say_refused(self) -> None:
        """Report the prompts that the run has refused until now, after a resumption and at the end."""
        with contextlib.suppress(StorageError, TimeoutError):  # not worth a long wait
            async with asyncio.timeout(FAIL_DEADLINE_S):
                if text := await refused_prompts(self._worker.log, self._progress.state, self._folder):
                    self._view.note(text)

    async def _restore(self) -> None:
        """Fold the past, which takes long only without a snapshot, and restart roles that die meanwhile."""
        restoring = asyncio.create_task(self._keeper.restore(self._progress, self._worker.log))
        try:
            while not restoring.done():
                await asyncio.wait([restoring], timeout=LOOK_S)
                await self._check_room()
                await self._check_roles()
            restoring.result()
        finally:
            await end_all(restoring)
        for recorded in await run_events_before(self._progress.state.position + 1, self._worker):
            self._over = self._worker.is_over(self._over, recorded.envelope.event)

    async def _follow(self) -> None:
        async with RecordFollower(self._worker.log, self._progress.state.position + 1, every_s=READ_S) as follower:
            has_begun = False
            while not (self._over and follower.caught_up):
                for recorded in await follower.next(wait_s=LOOK_S):
                    is_news = not follower.is_history(recorded)
                    if is_news and not has_begun:
                        has_begun = True
                        self._rejections = RejectionWatch(self._progress.state)
                        self._refusals = RefusalWatch(self._folder, self._progress.state)
                        self._view.begin(self._progress)
                    if isinstance(recorded, Recorded):
                        self._take(recorded, is_news=is_news)
                    elif (news := self._foreign.apply(recorded)) and is_news:
                        self._view.note(news)
                self._keeper.observe(self._progress)
                await self._check_room()
                await self._check_roles()
                if not follower.caught_up:
                    continue
                if not self._over:
                    await self._append_lost(self._processes.gone(await self._machines.lost()))
                if has_begun:
                    self._view.tick(self._progress, self._settings.rollout.num_rollout or 0)
                if late := self._archive.late(time.monotonic()):
                    self._view.note(late)
                if reason := self._engines.hopeless:
                    await self._fail("engine", reason)
                await self._check_conductor()

    def _take(self, recorded: Recorded, *, is_news: bool) -> None:
        if self._over and is_news:
            return  # e.g. an engine loads the last weights: the summary covers the run up to its end
        line = self._progress.apply(recorded)
        event = recorded.envelope.event
        self._over = self._worker.is_over(self._over, event)
        if not is_news:
            return
        if line is not None:
            self._view.step(line, self._progress, self._settings.rollout.num_rollout or 0)
            if warning := disagreement(line):
                self._view.note(warning)
        self._processes.apply(event)
        for news in (
            self._refusals.apply(event),
            self._rejections.apply(event),
            self._zeros.apply(event),
            self._engines.apply(event),
            self._archive.apply(event, time.monotonic()),
            _news_of(event, self._folder),
        ):
            if news:
                self._view.note(news)

    async def _check_room(self) -> None:
        """Fail the run before the disk is full, so that the log can still store the reason."""
        free = shutil.disk_usage(self._folder.path).free
        if free < LEAST_FREE_BYTES:
            reason = f"{self._folder.path} has {free >> 20} MB free: free some space; all acked events are in the log"
            await self._fail(LAUNCHER, reason, NoSpace)

    def _new_stall(self) -> Stall:
        return Stall(self._settings.rollout.rollout_deadline + CONDUCTOR_GRACE_S, 2 * LOOK_S, time.monotonic())

    async def _check_conductor(self) -> None:
        """Fail the run if it makes no progress and its conductor, which should fail it first, hangs."""
        state = self._progress.state
        excused = Outsiders.of(self._settings).are_waited_for(state, self._plan)
        idle = self._stall.seconds(state.moved, time.monotonic(), excused=excused)
        if idle is not None and not self._over:
            waited_for = waits_for(state, self._plan)
            reason = f"no progress for {idle:.0f} s while waiting for {waited_for}, and the conductor hangs"
            await self._fail(CONDUCTOR, reason, waited_for=waited_for)

    async def _check_roles(self) -> None:
        for role, task in list(self._roles.tasks.items()):
            error = error_of(task)
            if error is None:
                continue
            if not is_lost(error):
                if self._over:
                    return  # the log has the reason why the run ended, or `_await_roles` reports it
                await self._fail(role, reason_of(error))
            await self._start_again(role, reason_of(error))

    async def _start_again(self, role: str, reason: str) -> None:
        most = self._settings.run.max_deaths
        lost = await self._machines.lost(now=True)
        if not self._restarts.allows(role, self._progress.state.moved, lost):
            await self._fail(role, f"its process died {most} times without progress of the run: {reason}")
        self._view.note(f"the {role} is lost: {reason}; starting another one")
        self._roles.start(role)
        if role == CONDUCTOR:
            self._stall = self._new_stall()
        joined = next((joined for joined in reversed(self._progress.figures.workers) if joined.role == role), None)
        if joined is not None:
            await self._append_lost([WorkerLost(worker=joined.worker, role=role, reason=shown_text(reason))])

    async def _append_lost(self, lost: Sequence[WorkerLost]) -> None:
        """Append each event by itself: the log refuses an event that another participant has appended first."""
        for event in lost:
            with contextlib.suppress(StorageError, TimeoutError):  # worth neither the run nor a long wait
                async with asyncio.timeout(FAIL_DEADLINE_S):
                    await self._worker.append([event])

    async def _fail(
        self, role: str, reason: str, kind: type[SlimeEventsError] = TrainerError, *, waited_for: str | None = None
    ) -> NoReturn:
        """End the run because of a role: append run.failed if the log still replies, and raise."""
        state = self._progress.state
        if state.phase in (RunPhase.NEW, RunPhase.RUNNING):
            await announce_failure(self._worker, role, reason, at_events=state.events, waited_for=waited_for)
        await self._end(reason if role == LAUNCHER else f"the {role} ended: {reason}", kind)

    async def _end(self, failure: str, kind: type[SlimeEventsError] = TrainerError) -> NoReturn:
        """Archive a failed run up to its end, and raise."""
        self._roles.stop(ARCHIVIST)
        await asyncio.wait([self._roles.tasks[ARCHIVIST]], timeout=ARCHIVE_DEADLINE_S)
        raise kind(f"run {self._settings.run.run} failed (logs in {self._folder.logs}): {failure}")

    async def _await_roles(self) -> None:
        """Wait until all roles of a finished run have ended. A role that is lost meanwhile is started again."""
        until = time.monotonic() + END_DEADLINE_S
        while late := [role for role, task in self._roles.tasks.items() if not task.done()]:
            if behind := self._archive.late(time.monotonic()):
                self._view.note(behind)
            if time.monotonic() > until:
                archive = f"`slime-events archive {self._settings.run.run}`"
                rest = f": complete the archive with {archive}" if late == [ARCHIVIST] else ""
                raise DeadlineExceeded(
                    f"the run is over, but {', '.join(late)} did not end within {END_DEADLINE_S:.0f} s{rest}"
                )
            tasks = [self._roles.tasks[role] for role in late]
            await asyncio.wait(tasks, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            await self._check_roles()
        for role, task in self._roles.tasks.items():
            if error := error_of(task):
                raise TrainerError(f"the run is over, but the {role} failed: {reason_of(error)}")


class Restarts:
    """A fold of deaths of roles. most: deaths of one role without progress of the run that fail the run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._deaths: dict[str, tuple[int, int, frozenset[str]]] = {}

    def allows(self, role: str, moved: int, lost: Collection[str] = ()) -> bool:
        """Fold a death in, and return whether to start the role again.

        moved: position of the newest event that was progress. lost: machines that are lost. A death does not count if
        a machine was lost since the one before: Ray starts a process on a dying machine until it knows about it.
        """
        count, before, earlier = self._deaths.get(role, (0, moved, frozenset[str]()))
        counts = not count or earlier.issuperset(lost)
        count = count + counts if moved == before else 1
        self._deaths[role] = count, moved, frozenset(lost)
        return count < self._most


class ForeignWatch:
    """A fold of records that are not events of the run. Reports the first ones, then at each tenfold count."""

    def __init__(self) -> None:
        self._count = 0

    def apply(self, record: ForeignRecord) -> str | None:
        """Fold one record in, and return a sentence if it is news."""
        self._count += 1
        if self._count > FOREIGN and str(self._count).strip("0") != "1":
            return None
        return f"foreign record {self._count}, which has no effect: {describe(record)}"


class ArchiveWatch:
    """A fold that reports, once, an archive that is `late_s` seconds behind the log, and when it has caught up."""

    def __init__(self, late_s: float) -> None:
        self._late_s = late_s
        self._since: float | None = None
        self._is_late = False

    def apply(self, event: Event, now: float) -> str | None:
        """Fold one event in, and return a sentence if it is news. now: seconds of a monotonic clock."""
        if not isinstance(event, ArchiveSealed):
            self._since = now if self._since is None else self._since
            return None
        behind, was_late = now - (now if self._since is None else self._since), self._is_late
        self._since, self._is_late = None, False
        return f"the archive has caught up: it was {behind:.0f} s behind" if was_late else None

    def late(self, now: float) -> str | None:
        """Return a sentence if the archive has just become late."""
        if self._is_late or self._since is None or now - self._since < self._late_s:
            return None
        self._is_late = True
        return (
            f"the archive is {now - self._since:.0f} s behind; the log is complete. For the reason, see "
            "logs/archivist-*.log"
        )


class RejectionWatch:
    """Reports the first failed group, and then each time the count is tenfold.

    before: the run's state until now, without its reasons.
    """

    def __init__(self, before: RunState) -> None:
        self._rejections = Rejections()
        self._accepted, self._rejected = before.counts.groups_accepted, before.counts.groups_rejected
        self._failed = self._rejected - before.rejections.get(RejectionCause.FILTER, 0)
        self._failed_next, self._total_next = 1, FILTERED
        self._is_news()

    def apply(self, event: Event) -> str | None:
        """Fold one event in, and return a sentence if it is news."""
        if isinstance(event, GroupAccepted):
            self._accepted += 1
        if not isinstance(event, GroupRejected):
            return None
        self._rejections.apply(event)
        self._rejected += 1
        self._failed += event.cause is not RejectionCause.FILTER
        if not self._is_news():
            return None
        counted = f"{self._rejected} of {self._accepted + self._rejected} groups rejected"
        return f"{counted}: {self._rejections.commonest()}"

    def _is_news(self) -> bool:
        """Whether a threshold is reached; raises it then."""
        is_news = False
        while self._failed >= self._failed_next:
            self._failed_next, is_news = self._failed_next * 10, True
        while self._rejected >= self._total_next:
            self._total_next, is_news = self._total_next * 10, True
        return is_news


def _news_of(event: Event, folder: RunFolder) -> str | None:
    """Return the address of a gateway that joins, where a process is that lost its machine, or the difference that a
    replacement trainer makes.
    """
    if isinstance(event, WorkerJoined) and event.role == GATEWAY:
        token = f"for a token of a source: `slime-events gateway {folder.named} --issue NAME`"
        return f"the gateway is at {event.facts['url']}; {token}"
    if isinstance(event, WorkerJoined) and (moved := event.facts.get(MOVED)):
        return f"{event.worker}: {moved}"
    if not isinstance(event, TrainerRestored) or event.optimizer is Fidelity.EXACT:
        return None
    why = (
        f"it is the optimizer of version {event.checkpoint}, as {event.skipped} steps are more than "
        "--max-retrained-steps"
        if event.skipped
        else f"{event.differing} of {event.retrained} steps trained again gave different bits"
    )
    return f"the trainer continues from exactly version {event.version}, with an approximate optimizer: {why}"

"""`Supervisor`: follows a run's log and its roles to their ends; restarts what died, fails what cannot go on.

A role whose process is gone is started again: all that it held is in the log. A role that ends with a reason of its own
would do so again, and fails the run.
"""

import asyncio
import contextlib
import shutil
import time
from collections.abc import Sequence
from typing import NoReturn

from schemas.archives import ArchiveSealed
from schemas.errors import DeadlineExceeded, NoSpace, SlimeEventsError, StorageError, TrainerError, shown_text
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.trainers import Fidelity, TrainerRestored
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.analysis.model.foreign import describe
from slime_events.analysis.model.progress import Progress, ProgressSnapshot, disagreement
from slime_events.analysis.model.rejections import Rejections
from slime_events.app.launch.engine_processes import ROLE, EngineProcesses
from slime_events.app.launch.refusal_watch import RefusalWatch, refused_prompts
from slime_events.app.launch.roles import ARCHIVIST, CONDUCTOR, GATEWAY, Roles, error_of, is_lost, reason_of
from slime_events.app.launch.run_announcement import FAIL_DEADLINE_S, announce_failure
from slime_events.app.launch.view import View
from slime_events.app.launch.zero_rewards import ZeroRewardWatch
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.participant import Participant, run_events_before
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.state.keeper import StateKeeper
from slime_events.core.state.run import RunPhase, RunState
from slime_events.core.state.snapshot import Snapshots
from slime_events.loop.conductor.decide import Stall, waits_for
from slime_events.loop.conductor.outsiders import Outsiders
from slime_events.loop.conductor.plan import make_plan
from storage.cancellation import end_all
from storage.follow import RecordFollower
from storage.log import ForeignRecord, Recorded

LAUNCHER = "launcher"
END_DEADLINE_S = 60.0
ARCHIVE_DEADLINE_S = 10.0
CONDUCTOR_GRACE_S = 60.0
"""The conductor has the same deadline for the run's progress. It has this much longer to start and to report."""
ARCHIVE_LATE_S = 60.0
"""More than --archive-seconds, after which a person is told."""
LEAST_FREE_BYTES = 16 * 1024 * 1024
LOOK_S = 0.5
READ_S = 0.25
"""Between looks at the log: a person watches, and no step waits for that."""
START_TRIES = 2
FOREIGN = 10
"""Foreign records that are named one by one."""
FILTERED = 10
"""Groups that a filter drops before it is reported: a filter is there to drop some."""


class Supervisor:
    """worker: the launcher's, of the incarnation that is watched."""

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
        self._engines, self._rejections = EngineWatch(settings.engine.replicas), RejectionWatch(progress.state)
        self._refusals, self._zeros = RefusalWatch(folder, progress.state), ZeroRewardWatch(settings, folder.named)
        snapshots = Snapshots(folder.path / "snapshots" / LAUNCHER, ProgressSnapshot)
        self._keeper = StateKeeper(snapshots, settings.run.archive_url or str(folder.archive))
        self._archive = ArchiveWatch(settings.run.archive_seconds + ARCHIVE_LATE_S)
        self._restarts = Restarts(settings.run.max_deaths)
        self._plan = make_plan(settings.rollout, settings.evaluation, settings.trainer)
        self._stall = self._new_stall()
        self._over = False

    async def watch(self) -> None:
        """Until the run has finished and its roles have ended. Raises a SlimeEventsError that says why it failed."""
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
            raise TrainerError(f"run {state.run} was resumed by another launcher: this one ends, the run goes on there")
        await self._await_roles()

    async def _say_refused(self) -> None:
        """Which prompts of the run were refused until now, at the start of a resumed run and at the end of any."""
        with contextlib.suppress(StorageError, TimeoutError):  # a sentence is not worth a long wait
            async with asyncio.timeout(FAIL_DEADLINE_S):
                if text := await refused_prompts(self._worker.log, self._progress.state, self._folder):
                    self._view.note(text)

    async def _restore(self) -> None:
        """Take in the past, which takes long only where no snapshot is there; who dies meanwhile is started again."""
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
                    await self._tell_lost(self._processes.gone())
                if has_begun:
                    self._view.tick(self._progress, self._settings.rollout.num_rollout or 0)
                if late := self._archive.late(time.monotonic()):
                    self._view.note(late)
                if reason := self._engines.hopeless:
                    await self._fail("engine", reason)
                await self._check_conductor()

    def _take(self, recorded: Recorded, *, is_news: bool) -> None:
        if self._over and is_news:
            return  # such as an engine that loads the last weights only now: the summary is of the run up to its end
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
        archived = self._archive.apply(event, time.monotonic())
        said = _said_of(event, self._folder)
        refused = self._refusals.apply(event)
        rejected, zeros = self._rejections.apply(event), self._zeros.apply(event)
        for news in (refused, rejected, zeros, self._engines.apply(event), archived, said):
            if news:
                self._view.note(news)

    async def _check_room(self) -> None:
        """While the last of the disk is left, so that the log still takes the reason. NATS on a full disk is silent."""
        free = shutil.disk_usage(self._folder.path).free
        if free < LEAST_FREE_BYTES:
            reason = f"{self._folder.path} has {free >> 20} MB free: make room, what is acked is in the log"
            await self._fail(LAUNCHER, reason, NoSpace)

    def _new_stall(self) -> Stall:
        return Stall(self._settings.rollout.rollout_deadline + CONDUCTOR_GRACE_S, 2 * LOOK_S, time.monotonic())

    async def _check_conductor(self) -> None:
        """It fails a run that does not move on. Where it does not, it hangs itself."""
        state = self._progress.state
        excused = Outsiders.of(self._settings).are_waited_for(state, self._plan)
        idle = self._stall.seconds(state.moved, time.monotonic(), excused=excused)
        if idle is not None and not self._over:
            waited_for = waits_for(state, self._plan)
            reason = f"no progress for {idle:.0f} s while waiting for {waited_for}, and it does not say so: it hangs"
            await self._fail(CONDUCTOR, reason, waited_for=waited_for)

    async def _check_roles(self) -> None:
        for role, task in list(self._roles.tasks.items()):
            error = error_of(task)
            if error is None:
                continue
            if not is_lost(error):
                if self._over:
                    return  # the log says why the run has ended, or `_await_roles` will
                await self._fail(role, reason_of(error))
            await self._start_again(role, reason_of(error))

    async def _start_again(self, role: str, reason: str) -> None:
        most = self._settings.run.max_deaths
        if not self._restarts.allows(role, self._progress.state.moved):
            await self._fail(role, f"its process died {most} times and the run did not move on meanwhile: {reason}")
        self._view.note(f"the {role} is lost: {reason}; another one takes its place")
        self._roles.start(role)
        if role == CONDUCTOR:
            self._stall = self._new_stall()
        worker = next((one.worker for one in reversed(self._progress.figures.workers) if one.role == role), None)
        if worker is not None:
            await self._tell_lost([WorkerLost(worker=worker, role=role, reason=shown_text(reason))])

    async def _tell_lost(self, lost: Sequence[WorkerLost]) -> None:
        """Each by itself: one that another participant was first to tell is refused."""
        for event in lost:
            with contextlib.suppress(StorageError, TimeoutError):  # this event is not worth the run, nor a long wait
                async with asyncio.timeout(FAIL_DEADLINE_S):
                    await self._worker.append([event])

    async def _fail(
        self, role: str, reason: str, kind: type[SlimeEventsError] = TrainerError, *, waited_for: str | None = None
    ) -> NoReturn:
        """End the run for what a role did: in the log, if it still answers, and here."""
        state = self._progress.state
        if state.phase in (RunPhase.NEW, RunPhase.RUNNING):
            await announce_failure(self._worker, role, reason, at_events=state.events, waited_for=waited_for)
        await self._end(reason if role == LAUNCHER else f"the {role} ended: {reason}", kind)

    async def _end(self, failure: str, kind: type[SlimeEventsError] = TrainerError) -> NoReturn:
        """Archive a failed run as far as it came, and raise."""
        self._roles.stop(ARCHIVIST)
        await asyncio.wait([self._roles.tasks[ARCHIVIST]], timeout=ARCHIVE_DEADLINE_S)
        raise kind(f"run {self._settings.run.run} failed (logs in {self._folder.logs}): {failure}")

    async def _await_roles(self) -> None:
        """All roles of a finished run to their ends. One that is lost on the way is started again, to end by itself."""
        until = time.monotonic() + END_DEADLINE_S
        while late := [role for role, task in self._roles.tasks.items() if not task.done()]:
            if behind := self._archive.late(time.monotonic()):
                self._view.note(behind)
            if time.monotonic() > until:
                rest = f": `slime-events archive {self._settings.run.run}` does the rest" if late == [ARCHIVIST] else ""
                raise DeadlineExceeded(
                    f"the run is over, but {', '.join(late)} did not end in {END_DEADLINE_S:.0f} s{rest}"
                )
            tasks = [self._roles.tasks[role] for role in late]
            await asyncio.wait(tasks, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            await self._check_roles()
        for role, task in self._roles.tasks.items():
            if error := error_of(task):
                raise TrainerError(f"the run is over, but the {role} ended badly: {reason_of(error)}")


class Restarts:
    """A fold of deaths. most: deaths of one role between which the run did not move on that are one too many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._deaths: dict[str, tuple[int, int]] = {}

    def allows(self, role: str, moved: int) -> bool:
        """Fold a death in; whether to start the role again. moved: position of the newest event that moved the run."""
        count, before = self._deaths.get(role, (0, moved))
        count = count + 1 if moved == before else 1
        self._deaths[role] = count, moved
        return count < self._most


class EngineWatch:
    """replicas: engines that the run asked for; each one that joins beyond them replaces one that is gone."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._joined = 0
        self._lost: list[str] = []

    def apply(self, event: Event) -> str | None:
        """Fold one event in; a sentence where it is news."""
        if not isinstance(event, WorkerLost | WorkerJoined) or event.role != ROLE:
            return None
        if isinstance(event, WorkerLost):
            self._lost.append(event.reason)
            return f"{event.worker} is lost: {event.reason}"
        self._joined += 1
        seconds = f"it took {sum(event.seconds.values()):.0f} s to start"
        news = f"an engine was lost, and {event.worker} has joined in its place ({seconds})"
        return news if self._joined > self._replicas else None

    @property
    def hopeless(self) -> str | None:
        """Why no engine will ever join: before one did, `START_TRIES` for each that was asked for have ended."""
        if self._joined or len(self._lost) < START_TRIES * self._replicas:
            return None
        return f"{len(self._lost)} starts of an engine failed, the last one so: {self._lost[-1]}"


class ForeignWatch:
    """A fold of records that are no events of the run. It names the first ones, and then each tenfold."""

    def __init__(self) -> None:
        self._count = 0

    def apply(self, record: ForeignRecord) -> str | None:
        """Fold one in; a sentence where it is news."""
        self._count += 1
        if self._count > FOREIGN and str(self._count).strip("0") != "1":
            return None
        return f"foreign record {self._count}, folded as nothing: {describe(record)}"


class ArchiveWatch:
    """A fold. It reports an archive that is behind the log by `late_s` seconds, once, and when it has caught up."""

    def __init__(self, late_s: float) -> None:
        self._late_s = late_s
        self._since: float | None = None
        self._is_late = False

    def apply(self, event: Event, now: float) -> str | None:
        """Fold one event in; a sentence where it is news. now: seconds of a clock that is never set."""
        if not isinstance(event, ArchiveSealed):
            self._since = now if self._since is None else self._since
            return None
        behind, was_late = now - (now if self._since is None else self._since), self._is_late
        self._since, self._is_late = None, False
        return f"the archive goes on: it was {behind:.0f} s behind" if was_late else None

    def late(self, now: float) -> str | None:
        """A sentence where it has just become late."""
        if self._is_late or self._since is None or now - self._since < self._late_s:
            return None
        self._is_late = True
        return f"the archive is {now - self._since:.0f} s behind, the log has it all: logs/archivist-*.log says why"


class RejectionWatch:
    """It reports the first group that failed, and then each tenfold. before: the run's state until now; its reasons are
    forgotten.
    """

    def __init__(self, before: RunState) -> None:
        self._rejections = Rejections()
        self._accepted, self._rejected = before.counts.groups_accepted, before.counts.groups_rejected
        self._failed = self._rejected - before.rejections.get(RejectionCause.FILTER, 0)
        self._failed_next, self._total_next = 1, FILTERED
        self._is_news()

    def apply(self, event: Event) -> str | None:
        """Fold one event in; a sentence where it is news."""
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
        """Whether a threshold was reached; it is raised then."""
        is_news = False
        while self._failed >= self._failed_next:
            self._failed_next, is_news = self._failed_next * 10, True
        while self._rejected >= self._total_next:
            self._total_next, is_news = self._total_next * 10, True
        return is_news


def _said_of(event: Event, folder: RunFolder) -> str | None:
    """Where the gateway is; and what is to be known of a trainer that took over and came to other bits."""
    if isinstance(event, WorkerJoined) and event.role == GATEWAY:
        token = f"`slime-events gateway {folder.named} --issue NAME` makes a source's token"
        return f"the gateway is at {event.facts['url']}; {token}"
    if not isinstance(event, TrainerRestored) or event.optimizer is Fidelity.EXACT:
        return None
    why = (
        f"it is that of version {event.checkpoint}, as {event.skipped} steps are more than --max-retrained-steps"
        if event.skipped
        else f"{event.differing} of {event.retrained} steps trained again came out with other bits than before"
    )
    return f"the trainer goes on from exactly version {event.version}, with an approximate optimizer: {why}"

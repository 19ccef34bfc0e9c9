"""`Roles`: the processes of a run, which start together and are started again when they are lost."""

import asyncio
import os
from typing import Any

from actors.inbox_actor import InboxActor
from actors.ray_actors import ArchivistActor, ConductorActor, GraderActor, RankActor, TrainerActor
from schemas.errors import RankLost, SlimeEventsError
from schemas.placements import PlacedRole, PlacementPlanned, PlannedBundles
from schemas.redaction import shown
from slime_events.app.launch.abandonable import in_thread
from slime_events.app.launch.cluster import Cluster
from slime_events.core.config.settings import TrainSettings
from slime_events.core.planning.homes import homes_of
from slime_events.core.run.process_environment import NICE_BACKGROUND, NICE_TRAINING, rank_variables
from slime_events.core.run.run_address import RunAddress

ENGINES, TRAINER, CONDUCTOR, GRADER, ARCHIVIST = "engines", "trainer", "conductor", "grader", "archivist"
LOADER, DUMPER, FUNCTION = "loader", "dumper", "rollout-function"
INBOX, GATEWAY, AGENTS, TINKER, MODELS = "inbox", "gateway", "agents", "tinker", "models"
NICE = {TRAINER: NICE_TRAINING, ARCHIVIST: NICE_BACKGROUND, DUMPER: NICE_BACKGROUND, INBOX: NICE_TRAINING}
LATER = (TRAINER, GRADER, ARCHIVIST, DUMPER, INBOX)
HEAD_START_S = 2.0 if len(os.sched_getaffinity(0)) < 8 else 0.0
"""Seconds by which the roles in `LATER` start later, on a machine with few cores. The first prompts wait for the
conductor, the first tokens for an engine, and nothing waits for the other roles before there are rollouts. Niceness
does not help: a process gets it when it runs our code, after the expensive imports of Ray.
"""
GONE = "its process is gone (killed, out of memory, or crashed)"


class Roles:
    """The roles of a run. Ray Serve replaces lost engines; the supervisor starts any other lost role again."""

    def __init__(
        self, cluster: Cluster, settings: TrainSettings, address: RunAddress, planned: PlacementPlanned
    ) -> None:
        self._cluster, self._settings, self._address = cluster, settings, address
        self._planned = planned
        self._classes = _classes_of(settings)
        self._actors: dict[str, list[Any]] = {}
        self._starts: dict[str, int] = {}
        self._stopping: set[str] = set()
        self._late: dict[str, asyncio.Future[Any]] = {}
        self.tasks: dict[str, asyncio.Future[Any]] = {}
        """Result of each role's process, by role."""

    def start_all(self) -> None:
        """Start all roles, those in `LATER` a moment later. Each role waits for its events in the log."""
        engines = () if self._settings.debug.debug_train_only else (ENGINES,)
        for role in (*engines, *self._classes):
            if role in LATER and HEAD_START_S:
                self.tasks[role] = self._late[role] = asyncio.ensure_future(self._start_late(role))
            else:
                self.start(role)

    async def _start_late(self, role: str) -> None:
        await asyncio.sleep(HEAD_START_S)
        del self._late[role]
        self.start(role)  # replaces this task in `tasks`

    def start(self, role: str) -> None:
        """Start a role, and end the processes of its previous start."""
        for actor in self._actors.pop(role, ()):
            self._cluster.kill(actor)
        self._starts[role] = self._starts.get(role, 0) + 1
        if role == ENGINES:
            self.tasks[role] = in_thread(self._serve)
            return
        self.tasks[role] = asyncio.wrap_future(self._run(role).future())
        if role in self._stopping:
            self.stop(role)

    def stop(self, role: str) -> None:
        """Ask the conductor to end the run in order, or the archivist to finish, now and after later starts."""
        self._stopping.add(role)
        if (late := self._late.pop(role, None)) is not None:
            late.cancel()
            self.start(role)
            return
        for actor in self._actors.get(role, ())[-1:]:
            actor.stop.remote()

    def let_go(self) -> None:
        """Forget all actors before Ray ends, so that a late signal calls none of them.

        Marks the errors of roles as retrieved; otherwise asyncio would print them below the reason of the run's end.
        """
        self._actors.clear()
        for task in self._late.values():
            task.cancel()
        for task in self.tasks.values():
            task.add_done_callback(error_of)

    def _serve(self) -> None:
        """Deploy the engines, and return when the replicas run. Ray Serve replaces replicas that are lost later."""
        from serve_apps.deployment import rollout_app  # imports Ray Serve: half a second that no other role waits for
        from serve_apps.rollouts.generate.function import generate_setup

        address, engine = self._address, self._settings.engine
        homes, generate = homes_of(self._planned, PlacedRole.ENGINE), generate_setup(self._settings, address.models)
        groups, apps = {group.name: group for group in engine.groups}, []
        for bundles in self._bundles_of(PlacedRole.ENGINE):
            group, home = groups.get(bundles.group), homes[bundles.members[0]] if homes else None
            if group is not None and not group.trained:
                from serve_apps.model_deployment import model_app

                apps.append(model_app(address, engine, group, bundle=bundles, home=home))
                continue
            own = engine if group is None else engine.of_group(group)
            reward = self._settings.reward
            apps.append(rollout_app(address, own, reward, bundle=bundles, home=home, generate=generate))
        self._cluster.serve(apps, self._address.run)

    def _run(self, role: str) -> Any:
        """Call a role's actor, and return Ray's reference. The ranks of a trainer start together."""
        cls = self._classes[role]
        arguments: list[Any] = [self._address] if cls is ArchivistActor else [self._address, self._settings]
        if cls is TrainerActor:
            gpus, folder = self._gpus_of_a_rank(), self._address.folder
            peers = range(1, self._settings.trainer.world_size)
            arguments.append([self._actor(RankActor, role, f"rank{r}", folder, r, gpus=gpus, rank=r) for r in peers])
            arguments.append(homes_of(self._planned, PlacedRole.RANK))
            return self._actor(cls, role, gpus=gpus, rank=0).run.remote(*arguments)
        return self._actor(cls, role).run.remote(*arguments)

    def _gpus_of_a_rank(self) -> float | None:
        """Return the GPUs of a trainer's rank; None if the machine has none to hide from it."""
        device = self._settings.engine.device
        if device != "cuda":
            return 0.0 if device == "cpu" else None
        return self._bundles_of(PlacedRole.RANK)[0].gpus  # equal on all machines

    def _bundles_of(self, role: PlacedRole) -> list[PlannedBundles]:
        return [bundles for bundles in self._planned.bundles if bundles.role is role]

    def _actor(
        self, cls: type, role: str, name: str = "", *args: object, gpus: float | None = None, rank: int | None = None
    ) -> Any:
        place = f"{name or role}-{self._address.run}-{self._starts[role]}"
        env = rank_variables(self._settings.trainer) if role == TRAINER else None
        # All other roles write files, or have an address, of the launcher's machine: snapshots, the archive, dumps.
        here = role != TRAINER
        nice = 0 if gpus else NICE.get(role, 0)
        actor = self._cluster.actor(cls, place, *args, gpus=gpus, nice=nice, env=env, here=here, rank=rank)
        self._actors.setdefault(role, []).append(actor)
        return actor


def _classes_of(settings: TrainSettings) -> dict[str, type]:
    """Return the actor class of each role. Rare roles are imported only if used, as a run waits for its launcher.

    The conductor is first, because Ray starts few processes at a time and the other roles take long to import.
    """
    debug, data = settings.debug, settings.data
    classes: dict[str, type] = {CONDUCTOR: ConductorActor, TRAINER: TrainerActor}
    if debug.debug_rollout_only:
        from actors.debug.debug_processes import UntrainedActor

        classes[TRAINER] = UntrainedActor
    if data.supervised:
        from actors.debug.supervised import SupervisedActor

        classes[LOADER] = SupervisedActor
    elif debug.load_debug_rollout_data:
        from actors.debug.debug_processes import LoaderActor

        classes[LOADER] = LoaderActor
    if settings.rollout.rollout_function_path or settings.evaluation.own_function:
        from serve_apps.rollouts.rollout_function.actor import RolloutFunctionActor

        classes[FUNCTION] = RolloutFunctionActor
    if settings.run.tinker:
        from serve_apps.http.tinker.actor import TinkerActor

        classes[TINKER] = TinkerActor
    elif not debug.debug_train_only:
        classes[GRADER] = GraderActor
    classes |= {ARCHIVIST: ArchivistActor, INBOX: InboxActor}
    if debug.save_debug_rollout_data:
        from actors.debug.debug_processes import DumperActor

        classes[DUMPER] = DumperActor
    if settings.gateway.listens:
        from serve_apps.http.gateway.actor import GatewayActor

        classes[GATEWAY] = GatewayActor
    if any(not group.trained for group in settings.engine.groups) and not debug.debug_train_only:
        from serve_apps.engines.served.actor import ModelRouterActor

        classes[MODELS] = ModelRouterActor
    if settings.agents.agent_command:
        from serve_apps.http.agent_command.actor import AgentCommandActor

        classes[AGENTS] = AgentCommandActor
    return classes


def is_lost(error: BaseException | None) -> bool:
    """Whether a process is gone, so that a new one can continue. Any other error would happen again."""
    from ray.exceptions import RayActorError

    return isinstance(_cause(error), RayActorError | RankLost)


def reason_of(error: BaseException | None) -> str:
    """Return the message of an actor's error: the cause that Ray wraps, without its remote traceback."""
    from ray.exceptions import RayActorError

    cause = _cause(error)
    if isinstance(cause, SlimeEventsError):
        return str(cause)
    if isinstance(cause, RayActorError):
        return GONE
    return shown(f"{type(cause).__name__}: {str(cause).strip().splitlines()[-1] if str(cause).strip() else ''}")


def error_of(task: asyncio.Future[Any]) -> BaseException | None:
    """Return the error of a role; None if it is running or has ended well."""
    if not task.done():
        return None
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _cause(error: BaseException | None) -> BaseException | None:
    return getattr(error, "cause", None) or error

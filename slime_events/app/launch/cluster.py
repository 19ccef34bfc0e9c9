"""`Cluster`: Ray and Ray Serve, started for one run on loopback, or a running Ray that the run joins."""

import contextlib
import functools
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.errors import DeadlineExceeded, MissingPart
from schemas.placements import PlacedRole, PlacementPlanned
from slime_events.app.launch.leftovers import end_leftovers
from slime_events.app.launch.own_ray import make_small
from slime_events.app.launch.rank_places import RankPlaces, cpu_nodes, gpu_nodes
from slime_events.app.launch.ray_machines import on_node, own_node
from slime_events.app.launch.run_lock import MARK
from slime_events.core.planning.homes import Home, homes_of
from slime_events.core.planning.placement import GpuNode
from slime_events.core.run.network import carried_variables
from slime_events.core.run.own_python import own_path
from slime_events.core.run.process_environment import KEEP_MEMORY, ONE_THREAD, inherited, restored, yield_to_others
from slime_events.plugins.loader import USER_FOLDER
from storage.folders.cache import FOLDER, GB

QUIET = {
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
log = logging.getLogger(__name__)

TOKEN_NAMES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
MODE_NAME = "RAY_AUTH_MODE"
"""Ray sets this variable when it starts. A process that inherits the mode without a token cannot start a Ray."""
LOOPBACK = "127.0.0.1"
OBJECT_STORE_BYTES = 256 * 1024 * 1024
"""Smallest size of Ray's object store."""
OBJECT_STORE_LIMIT = 8 * 1024**3
"""Largest size. A batch of 2,048 samples of 32,768 tokens takes 0.6 GB, and recorded log-probs as much again."""
SHARED_MEMORY = "/dev/shm"
MARKED = 12
"""Characters of a launch's mark in the names of its deployments."""
LEAVE_S, LEAVE_LOOK_S = 10.0, 0.05
"""Seconds in which a running deployment must stop before Ray ends, and seconds between checks."""


@functools.cache
def _token() -> str:
    # One token per process: Ray reads it once.
    return secrets.token_hex(32)


def token_variables(file: Path | None) -> dict[str, str]:
    """Write a token to `file`, and return the variable by which Ray's processes find it.

    Returns no variable if there is no file or the user has set a token.
    """
    if file is None or any(name in os.environ for name in TOKEN_NAMES):
        return {}
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(_token())
    return {"RAY_AUTH_TOKEN_PATH": str(file)}


class Cluster:
    """A local Ray on loopback, or the Ray at `address`.

    token_file: file for the token of a local Ray. By default Ray uses one file for every Ray of a user.
    """

    def __init__(self, address: str | None, token_file: Path | None = None) -> None:
        self._address, self._token_file = address, token_file
        self._apps: list[str] = []
        self._starting = threading.Lock()
        self._ended = self._deploying = False
        self._places: RankPlaces | None = None
        self._homes: tuple[Home, ...] = ()
        self._placed: set[int] = set()
        self.nodes: list[GpuNode] = []
        """Machines with GPUs, set by `start`."""
        self.homes: list[GpuNode] = []
        """All machines of a Ray that was joined, this one first, set by `start`."""

    def start(self) -> None:
        """Start or join Ray. Blocks for some seconds: call it in a thread.

        Raises MissingPart if Ray is not installed, DeadlineExceeded if it does not start or reply, or after `stop`.
        """
        with self._starting:
            if self._ended:
                raise DeadlineExceeded("Ray was not started: the run is ending")
            self._start()

    def _start(self) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingPart("Ray is not installed: run `make install`, then `slime-events doctor`") from error
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        cache = {name: os.environ[name] for name in (FOLDER, GB) if name in os.environ}
        variables, extra = {**ONE_THREAD, **QUIET, **KEEP_MEMORY, **own_path(), **cache}, {}
        # Workers may be on other machines, and relative paths of a user's functions are relative to this folder. The
        # mark identifies them if this launcher is killed.
        there = {USER_FOLDER: str(Path.cwd())} | {name: os.environ[name] for name in (MARK,) if name in os.environ}
        own: dict[str, Any] = {"runtime_env": {"env_vars": carried_variables() | variables | there}}
        if not self._address:
            store = object_store_bytes(_free_shared_memory())
            own = {"include_dashboard": False, "object_store_memory": store, "_node_ip_address": LOOPBACK}
            # Workers inherit the variables: with a runtime_env, each worker imports Ray twice, once to set them.
            extra = variables | token_variables(self._token_file)
            make_small()
        try:
            with restored([MODE_NAME]), inherited(extra):
                ray.init(
                    address=self._address or "local",
                    job_config=_job(),
                    log_to_driver=False,
                    logging_level="ERROR",
                    **own,
                )
        except (Exception, SystemExit) as error:  # Ray raises many types, and each means that it did not start
            where = f"at {self._address}" if self._address else "on this machine"
            raise DeadlineExceeded(f"Ray {where} did not start or reply: {type(error).__name__}: {error}") from error
        # Otherwise a call after `stop`, such as one of a running deployment, would start or join another Ray.
        ray._private.auto_init_hook.enable_auto_connect = False
        # Ray prints a message about each process that died to the terminal. The run reports what a death means; Ray's
        # messages go to the log.
        ray._private.worker.print_to_stdstream = _log_ray
        self.look()

    def look(self) -> None:
        """Set `nodes` and `homes` to the machines that Ray counts as alive now."""
        self.nodes, self.homes = gpu_nodes(), cpu_nodes() if self._address else []

    def place(self, planned: PlacementPlanned) -> None:
        """Reserve the planned bundles of all ranks, so that engines fit beside them.

        On CPUs ranks go to the planned machines. Blocks for some seconds: call it in a thread. Raises DeadlineExceeded
        if Ray does not give the GPUs, or after `stop`.
        """
        with self._starting:
            if self._ended:
                raise DeadlineExceeded("the trainer's ranks got no GPUs: the run is ending")
            self._places = RankPlaces.reserve(planned, lambda: self._ended)
            self._homes = homes_of(planned, PlacedRole.RANK)

    def actor(
        self,
        cls: type,
        name: str,
        *args: object,
        gpus: float | None = None,
        nice: int = 0,
        env: Mapping[str, str] | None = None,
        here: bool = False,
        rank: int | None = None,
    ) -> Any:
        """Create a Ray actor of `cls` in its own process.

        gpus: GPUs that the actor takes; with 0 torch sees none, with None all GPUs of the machine. nice: niceness of
        the process. env: extra environment variables of this process. here: run it on this machine. rank: rank of the
        trainer, which goes to its place if `place` has chosen places.
        """
        import ray

        own = {"runtime_env": {"env_vars": dict(env)}} if env else {}
        remote = ray.remote(num_cpus=0, num_gpus=gpus or 0, max_restarts=0, **own)(cls)
        actor = remote.options(name=name, **self._where(here=here, rank=rank)).remote(*args)
        if nice or gpus == 0:
            actor.__ray_call__.remote(_settle, nice, gpus == 0)
        return actor

    def _where(self, *, here: bool, rank: int | None) -> dict[str, Any]:
        """Return the options that place an actor; none if any machine will do.

        A rank that starts again goes to another machine if its own is lost.
        """
        if rank is None:
            return on_node(own_node()) if here and self._address else {}
        if self._places is not None:
            return {"scheduling_strategy": self._places.of(rank)}
        if not self._homes:
            return {}
        again = rank in self._placed
        self._placed.add(rank)
        return on_node(self._homes[rank].node, or_elsewhere=again)

    def end_leftovers(self, mark: str, run: str) -> int:
        """End the processes of a killed launcher of the run on all machines, and return their number. Blocks.

        mark: its value of MARK.
        """
        return end_leftovers(mark, app_of(run, mark))

    def kill(self, actor: Any) -> None:
        """End an actor's process."""
        import ray

        ray.kill(actor)

    def serve(self, apps: Sequence[Any], run: str) -> None:
        """Deploy a run's engines, without an HTTP proxy, as rollouts pass through the log. Blocks until they run."""
        from ray import serve

        first = app_of(run, os.environ.get(MARK, ""))
        named = {f"{first}-{number}": app for number, app in enumerate(apps)}
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        self._deploying = True
        try:
            serve.start(http_options={"location": "NoServer"}, logging_config={"log_level": "WARNING"})
            self._apps.extend(named)
            serve.run_many([serve.RunTarget(app, name=name, route_prefix=None) for name, app in named.items()])
        finally:
            self._deploying = False

    def stop(self) -> None:
        """Stop the engines, and a local Ray as a whole. Waits for a start in progress."""
        self._ended = True
        with self._starting, contextlib.suppress(ImportError):
            import ray

            if not ray.is_initialized():
                return
            if self._address:
                from ray import serve

                for app in self._apps:
                    serve.delete(app)
            else:
                self._end_deployment()
            ray.shutdown()

    def _end_deployment(self) -> None:
        """Stop a running deployment before Ray ends: a thread inside Ray at that moment can end the whole process."""
        import ray
        from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

        until = time.monotonic() + LEAVE_S
        while self._deploying and time.monotonic() < until:
            with contextlib.suppress(Exception):  # the controller may not exist yet, which Ray reports in many ways
                ray.kill(ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE))
            time.sleep(LEAVE_LOOK_S)


def object_store_bytes(free: int) -> int:
    """Return the size of Ray's object store on a machine with `free` bytes of shared memory: a quarter, in limits.

    Ray takes the memory as it is used. What does not fit is written to disk, and read again by each rank.
    """
    return max(OBJECT_STORE_BYTES, min(OBJECT_STORE_LIMIT, free // 4))


def _free_shared_memory() -> int:
    try:
        return shutil.disk_usage(SHARED_MEMORY).free
    except OSError:  # not Linux: Ray keeps its objects in a file
        return 0


def _job() -> Any:
    """Return a job whose workers import installed packages first.

    By default Ray puts this process's working directory and the folder of its script before them.
    """
    from ray.job_config import JobConfig

    class Job(JobConfig):  # type: ignore[misc]  # untyped
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return Job()


def _settle(_: object, nice: int, hides_gpus: bool) -> None:
    """Prepare an actor's process before its first call, while CUDA has not been initialized yet.

    A runtime_env could set the variable too, but would start the process twice.
    """
    if hides_gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    yield_to_others(nice)


def app_of(run: str, mark: str) -> str:
    """Return the beginning of the names of the deployments of a run's engines. mark: of its launch, as two users of a
    Ray may have runs of the same name.
    """
    return f"rollout-{run}-{mark[:MARKED]}"


def _log_ray(data: dict[str, Any], ignore_prefix: bool = False) -> None:
    for line in data["lines"]:
        log.info("ray: %s", line)

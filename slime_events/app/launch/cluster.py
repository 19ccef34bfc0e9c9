"""`Cluster`: Ray and Ray Serve, started for one run on loopback or joined where one is running."""

import contextlib
import functools
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.errors import DeadlineExceeded, MissingPart
from slime_events.app.launch.gpu_preflight import Needs
from slime_events.app.launch.own_ray import make_small
from slime_events.app.launch.placement import GpuNode
from slime_events.app.launch.rank_places import RankPlaces, gpu_nodes
from slime_events.core.run.own_python import own_path
from slime_events.core.run.process_environment import KEEP_MEMORY, ONE_THREAD, inherited, yield_to_others
from slime_events.plugins.loader import USER_FOLDER

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
LOOPBACK = "127.0.0.1"
OBJECT_STORE_BYTES = 256 * 1024 * 1024
"""Smallest size of Ray's object store."""
OBJECT_STORE_LIMIT = 8 * 1024**3
"""Largest size. A batch of 2,048 samples of 32,768 tokens takes 0.6 GB, and recorded log-probs as much again."""
SHARED_MEMORY = "/dev/shm"
LEAVE_S, LEAVE_LOOK_S = 10.0, 0.05
"""How long a deployment under way has to give up before Ray ends under it."""


@functools.cache
def _token() -> str:
    """Of this process: Ray reads one once."""
    return secrets.token_hex(32)


def token_variables(file: Path | None) -> dict[str, str]:
    """The variable by which Ray's processes find a token in this file, which is written; none where the user has chosen
    how Ray asks for one.
    """
    if file is None or any(name in os.environ for name in TOKEN_NAMES):
        return {}
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(_token())
    return {"RAY_AUTH_TOKEN_PATH": str(file)}


class Cluster:
    """A local Ray on loopback, or the Ray at `address`. nodes: those with GPUs, once it has started.

    token_file: for the token of a local one, which Ray would keep in a file for all that a user starts.
    """

    def __init__(self, address: str | None, token_file: Path | None = None) -> None:
        self._address, self._token_file = address, token_file
        self._apps: list[str] = []
        self._starting = threading.Lock()
        self._ended = self._deploying = False
        self._places: RankPlaces | None = None
        self.nodes: list[GpuNode] = []

    def start(self) -> None:
        """Blocks for some seconds: call it in a thread. Raises MissingPart where Ray is not installed, DeadlineExceeded
        where it does not start or answer, or is to stop already."""
        with self._starting:
            if self._ended:
                raise DeadlineExceeded("Ray was not started: the run ends")
            self._start()

    def _start(self) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingPart("Ray is not installed: run `make install`, then `slime-events doctor`") from error
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        variables, given = {**ONE_THREAD, **QUIET, **KEEP_MEMORY, **own_path()}, {}
        # Its workers may be anywhere: relative names of a user's functions are of this folder.
        own: dict[str, Any] = {"runtime_env": {"env_vars": variables | {USER_FOLDER: str(Path.cwd())}}}
        if not self._address:
            store = object_store_bytes(_free_shared_memory())
            own = {"include_dashboard": False, "object_store_memory": store, "_node_ip_address": LOOPBACK}
            # Inherited: with a runtime_env each worker imports Ray twice, once to set it.
            given = variables | token_variables(self._token_file)
            make_small()
        try:
            with inherited(given):
                ray.init(
                    address=self._address or "local",
                    job_config=_job(),
                    log_to_driver=False,
                    logging_level="ERROR",
                    **own,
                )
        except (Exception, SystemExit) as error:  # Ray has many, and all of them mean this
            where = f"at {self._address}" if self._address else "here"
            raise DeadlineExceeded(f"Ray {where} did not start or answer: {type(error).__name__}: {error}") from error
        # Else a call that comes after `stop`, such as one of a deployment under way, would start or join another Ray.
        ray._private.auto_init_hook.enable_auto_connect = False
        # Ray prints of each process that died into whatever the terminal shows, past its own logging. What a death
        # means for the run is said by the run; Ray's words go to the log.
        ray._private.worker.print_to_stdstream = _log_ray
        self.nodes = gpu_nodes()

    def place_ranks(self, needs: Needs, share: float) -> int:
        """Reserve the GPUs of all ranks, so that engines fit beside them. Blocks for some seconds: call it in a thread.
        share: of a GPU that a rank takes. The number of tensor parallel groups that are on several machines.

        Raises DeadlineExceeded where Ray does not give them, or is to stop.
        """
        with self._starting:
            if self._ended:
                raise DeadlineExceeded("the trainer's ranks got no GPUs: the run ends")
            self._places = RankPlaces.reserve(needs, self.nodes, share, lambda: self._ended)
            return self._places.split

    def actor(
        self,
        cls: type,
        name: str,
        *args: Any,
        gpus: float | None = None,
        nice: int = 0,
        env: Mapping[str, str] | None = None,
        here: bool = False,
        rank: int | None = None,
    ) -> Any:
        """A Ray actor of `cls` with a process of its own. gpus: with 0 torch sees none in it, with None whatever the
        machine has. nice: by how much it yields to others on its machine. env: of its process alone, beside what all
        have. here: on this machine. rank: of the trainer; it goes to its place, where `place_ranks` has made some.
        """
        import ray

        own = {"runtime_env": {"env_vars": dict(env)}} if env else {}
        remote = ray.remote(num_cpus=0, num_gpus=gpus or 0, max_restarts=0, **own)(cls)
        where = _this_node() if here else None if rank is None or self._places is None else self._places.of(rank)
        placed = remote.options(name=name, **({"scheduling_strategy": where} if where else {}))
        actor = placed.remote(*args)
        if nice or gpus == 0:
            actor.__ray_call__.remote(_settle, nice, gpus == 0)
        return actor

    def kill(self, actor: Any) -> None:
        """End an actor's process, if it has not ended yet."""
        import ray

        ray.kill(actor)

    def serve(self, app: Any, name: str) -> None:
        """Deploy without an HTTP proxy: rollouts come and go through the log. Blocks until the replicas run."""
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        self._deploying = True
        try:
            serve.start(http_options={"location": "NoServer"}, logging_config={"log_level": "WARNING"})
            self._apps.append(name)
            serve.run(app, name=name, route_prefix=None)
        finally:
            self._deploying = False

    def stop(self) -> None:
        """Take the engines down; of a Ray that was started here, everything. What is being started is waited for."""
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
        """Have whoever deploys leave Ray before it ends: a thread that is in Ray then can take the process with it."""
        import ray
        from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

        until = time.monotonic() + LEAVE_S
        while self._deploying and time.monotonic() < until:
            with contextlib.suppress(Exception):  # it may not be there yet
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
    """A job whose workers do not look for modules in this process's working directory, or beside its script: Ray would
    put these before what is installed.
    """
    from ray.job_config import JobConfig

    class Job(JobConfig):  # type: ignore[misc]  # untyped
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return Job()


def _settle(_: Any, nice: int, hides_gpus: bool) -> None:
    """In an actor's process, before its first call: CUDA, which nothing has started yet, looks at the variable then. A
    runtime_env would do so too, and cost a second start of the process.
    """
    if hides_gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    yield_to_others(nice)


def _this_node() -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _log_ray(data: dict[str, Any], ignore_prefix: bool = False) -> None:
    for line in data["lines"]:
        log.info("ray: %s", line)

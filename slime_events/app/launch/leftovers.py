"""`end_leftovers`: end what a killed launcher left on the machines of a Ray that it had joined.

Ray ends the roles of a launcher that is gone, but not the engines, which belong to Ray Serve, and not processes that
roles have started.
"""

from __future__ import annotations

import contextlib

from slime_events.app.launch.ray_machines import ray_machines
from slime_events.app.launch.run_lock import MARK
from slime_events.core.run.orphans import end_orphans

END_S = 60.0
"""Seconds for all machines together. A machine that does not reply in time may be lost itself."""


def end_leftovers(mark: str, app: str) -> int:
    """Delete the engines' deployments and end processes with the mark on each machine. Returns their number.

    mark: value of MARK of the killed launcher. app: beginning of the deployments' names. Blocks for some seconds.
    Ignores machines that do not reply: what is left there can append nothing, because its incarnation is over.
    """
    import ray
    from ray import serve

    for name in serve.status().applications:
        if name.startswith(app):
            serve.delete(name)  # otherwise Serve would replace each engine that is ended
    task = ray.remote(num_cpus=0, max_retries=0)(_end_here)
    calls = [task.options(**machine.only).remote(mark) for machine in ray_machines()]
    done, _ = ray.wait(calls, num_returns=len(calls), timeout=END_S) if calls else ([], [])
    count = 0
    for call in done:
        with contextlib.suppress(ray.exceptions.RayError):  # its machine has just been lost
            count += int(ray.get(call))
    return count


def _end_here(mark: str) -> int:
    return end_orphans(mark, _of_ray(), variable=MARK)


def _of_ray() -> list[int]:
    """Return processes of Ray Serve itself, which other runs of the same Ray use too."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    pids = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has just ended, or belongs to another user
            if "ServeController" in " ".join(process.cmdline()):
                pids.append(process.pid)
    return pids

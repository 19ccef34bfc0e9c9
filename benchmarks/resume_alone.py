"""`python -m benchmarks.resume_alone <run folder>`: resume a run up to the first decision without Ray.

It starts the server, reads the record, announces the resumption, and runs the conductor in this process, without engine
and trainer. So its time depends on the length of the log, and not on Ray.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from actors.ray_actors import ConductorActor
from slime_events.app.launch.run import Launch
from slime_events.app.launch.run_announcement import announce_resume
from slime_events.app.launch.run_lock import holding
from slime_events.app.launch.run_record import read_run_record
from slime_events.app.launch.supervisor import LAUNCHER
from slime_events.app.launch.view import View
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_folder import RunFolder
from storage.open_log import keeping_server, open_run_log


async def main(path: Path) -> None:
    """Resume, and run the conductor until killed."""
    folder = RunFolder.find(path.parent, path.name)
    async with open_run_log(folder.path, folder.run) as log:
        record = await read_run_record(log)
    launch = Launch(record.settings, View(), resumes=record, folder=folder)
    with holding(folder) as before:
        async with launch._server.log(before, create=False) as (nats, log):
            incarnation = await announce_resume(Participant(log, LAUNCHER), record, record.settings, folder)
            await ConductorActor().run(launch._address(nats, incarnation), record.settings)


if __name__ == "__main__":
    with keeping_server(Path(sys.argv[1])):
        asyncio.run(main(Path(sys.argv[1])))

"""`read_status`: the current status of a run, with a look for its launcher."""

from schemas.errors import RunIsOn
from slime_events.app.launch.launcher_presence import check_absent
from slime_events.app.launch.run_lock import is_held
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun
from slime_events.model.run_status import RunStatus, last_run_event, status_of
from storage.jetstream.log import JetStreamLog
from storage.log import Readable
from storage.open_log import URL_FILE


async def read_status(opened: OpenedRun) -> RunStatus:
    """Return the current status of an opened run. Raises StorageError."""
    launched = None if opened.folder is None else await is_launched(opened.folder, opened.log)
    return status_of(await last_run_event(opened.log), launched)


async def is_launched(folder: RunFolder, log: Readable) -> bool:
    """Whether a launcher is running: on this machine by the folder's lock, on another by its reply over NATS."""
    if is_held(folder):
        return True
    if not (folder.path / URL_FILE).is_file() or not isinstance(log, JetStreamLog):
        return False
    try:
        await check_absent(log)
    except RunIsOn:
        return True
    return False

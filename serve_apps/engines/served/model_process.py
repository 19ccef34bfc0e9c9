"""The process of a served model: `python -m serve_apps.engines.served.model_process <socket> <owner> <folder>`.

It is SGLang's own HTTP server, with all of its paths (`/generate`, `/v1/chat/completions`, `/classify`, ...). SGLang
starts its schedulers from here. All of them end with the owner.
"""

import json
import os
import sys
import threading
from pathlib import Path

from schemas.references import expand_all
from serve_apps.engines.engine_folder import ARGUMENTS
from serve_apps.engines.host import end, end_with_owner
from serve_apps.engines.plugin import SWITCH
from slime_events.core.child.inside import connection_of
from slime_events.core.run.process_environment import NICE_GENERATION, yield_to_others


def main() -> None:
    """Serve until the owner ends. The socket closes with this process, which tells the owner of its end."""
    if os.environ.get(SWITCH) != "cuda":
        yield_to_others(NICE_GENERATION)
    descriptor, owner, folder = sys.argv[1:]
    connection = connection_of(descriptor)
    threading.Thread(target=end_with_owner, args=(int(owner), Path(folder)), daemon=True).start()
    try:
        from sglang.srt.entrypoints.http_server import launch_server
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import ServerArgs

        load_plugins()  # ours allows deterministic inference on a CPU, which the arguments name
        launch_server(ServerArgs(**expand_all(json.loads((Path(folder) / ARGUMENTS).read_bytes()))))
    except Exception:  # the last handler: the owner reads the reason in the log
        sys.excepthook(*sys.exc_info())
    finally:
        connection.close()
        end()


if __name__ == "__main__":
    main()

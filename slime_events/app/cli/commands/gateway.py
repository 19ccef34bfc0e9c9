"""`slime-events gateway`: serve HTTP for the producers of a run, and manage their tokens."""

import argparse
import asyncio
import logging
import signal

from schemas.errors import InvalidValue
from serve_apps.http.gateway.listening import bound
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Sources, scope_of
from slime_events.core.config.gateway import RunGatewaySettings
from slime_events.core.run.run_folder import find_run

FLAGS = [name for name in RunGatewaySettings.__struct_fields__ if name != "gateway"]
"""Settings of a run's own gateway. The command's flags have the same names without the prefix `gateway-`."""


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted; or issue, revoke or list tokens."""
    folder = find_run(arguments.run, arguments.runs_dir)
    sources = Sources(folder.path)
    if arguments.issue:
        print(sources.issue(arguments.issue, map(scope_of, arguments.may), arguments.per_minute))
        return 0
    if arguments.may or arguments.per_minute is not None:
        raise InvalidValue("--may and --per-minute need --issue NAME.")
    if arguments.revoke:
        sources.revoke(arguments.revoke)
        return 0
    if arguments.sources:
        for name in sources.names:
            print(f"{name}  {sources.rights(name).limits}".rstrip())
        return 0
    values = {name: getattr(arguments, name.removeprefix("gateway_")) for name in FLAGS}
    as_role = RunGatewaySettings(gateway=arguments.listen, **values)
    settings = GatewaySettings.of_run(as_role, role=False, nats_creds=arguments.nats_creds or "")
    if not sources.names:
        raise InvalidValue(
            f"run {folder.run} has no source with a token: issue a token with `slime-events gateway {folder.run} "
            "--issue NAME`"
        )
    import uvloop  # Ray uses it too, if the gateway is a role of the run

    from serve_apps.http.gateway.serving import GatewayServer, serve_until_signal, url_of

    logging.basicConfig(level=logging.WARNING)
    with bound(settings) as listening, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        where = url_of(listening, settings)
        print(f"the gateway of run {folder.log_name()} is at {where}, its API in {where}/openapi.json", flush=True)
        number = runner.run(serve_until_signal(GatewayServer(folder, settings), listening))
    if number:
        signal.raise_signal(number)
    return 0

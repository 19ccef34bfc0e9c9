"""`slime-events gateway`: HTTP for producers of a run, and the tokens that they need."""

import argparse
import logging
import socket

from schemas.errors import InvalidValue
from serve_apps.gateway.settings import GatewaySettings, parse_listen
from serve_apps.gateway.sources import Sources
from slime_events.core.run.run_folder import RunFolder, find_run

FOLDER = "gateway"
"""In the run's folder: its sources."""
STOP_S = 3
"""Seconds for requests under way when it ends; who follows a group is cut off then."""


async def run(arguments: argparse.Namespace) -> int:
    """Answer until it is interrupted; or issue, revoke or list tokens."""
    folder = find_run(arguments.run, arguments.runs_dir)
    sources = Sources(folder.path / FOLDER)
    if arguments.issue:
        print(sources.issue(arguments.issue))
        return 0
    if arguments.revoke:
        sources.revoke(arguments.revoke)
        return 0
    if arguments.sources:
        print(*sources.names, sep="\n", end="\n" if sources.names else "")
        return 0
    await _serve(folder, sources, _settings(arguments))
    return 0


def _settings(arguments: argparse.Namespace) -> GatewaySettings:
    """Checked. Raises InvalidValue."""
    host, port = parse_listen(arguments.listen)
    settings = GatewaySettings(
        host=host,
        port=port,
        tls_cert=arguments.tls_cert or "",
        tls_key=arguments.tls_key or "",
        origins=tuple(arguments.allow_origin),
        hosts=tuple(arguments.host_name),
    )
    settings.check(insecure=arguments.insecure)
    return settings


async def _serve(folder: RunFolder, sources: Sources, settings: GatewaySettings) -> None:
    import uvicorn

    from serve_apps.gateway.app import gateway_app
    from serve_apps.gateway.live_run import LiveRun

    if not sources.names:
        raise InvalidValue(
            f"nobody may send yet: `slime-events gateway {folder.run} --issue NAME` prints the token of a source"
        )
    logging.basicConfig(level=logging.WARNING)
    with _bound(settings) as bound:
        host, port = bound.getsockname()[:2]
        where = f"{'https' if settings.tls_cert else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        async with LiveRun(folder) as live:
            config = uvicorn.Config(
                gateway_app(live, sources, settings),
                log_level="warning",
                server_header=False,
                ssl_certfile=settings.tls_cert or None,
                ssl_keyfile=settings.tls_key or None,
                timeout_graceful_shutdown=STOP_S,
            )
            print(f"the gateway of run {live.name} is at {where}, its routes in {where}/openapi.json", flush=True)
            await uvicorn.Server(config).serve([bound])


def _bound(settings: GatewaySettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise InvalidValue(
            f"--listen {settings.host}:{settings.port} cannot be listened on: {error.strerror}"
        ) from error

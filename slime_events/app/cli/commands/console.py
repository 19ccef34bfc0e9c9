"""`slime-events console`: serve pages over runs, and manage the tokens of those who may read them."""

import argparse
import asyncio
import logging
import signal

from schemas.errors import InvalidValue
from serve_apps.http.gateway.listening import bound
from serve_apps.http.gateway.settings import GatewaySettings, parse_listen
from serve_apps.http.gateway.sources import Scope, Sources
from slime_events.app.cli.console_runs import ServedArchive, ServedRuns, served


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted; or issue or revoke a token."""
    source = served(arguments.run, arguments.runs_dir)
    if arguments.issue or arguments.revoke:
        return _manage(_sources(source), arguments.issue, arguments.revoke)
    host, port = parse_listen(arguments.listen)
    settings = GatewaySettings(
        host=host,
        port=port,
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        hosts=tuple(arguments.host_name),
        insecure=arguments.insecure,
    ).checked()
    sources = None if settings.is_loopback else _sources(source)
    if sources is not None and not any(Scope.VIEW in (sources.rights(name).may or ()) for name in sources.names):
        raise InvalidValue(
            f"{settings.listens}: nobody has a token with the right {Scope.VIEW}: issue one with `slime-events console "
            f"{source.where} --issue NAME`"
        )
    if isinstance(source, ServedArchive):
        asyncio.run(source.check())
    import uvloop

    from serve_apps.http.console.serving import ConsoleServer
    from serve_apps.http.gateway.serving import serve_until_signal, url_of

    logging.basicConfig(level=logging.WARNING)
    with bound(settings) as listening, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(f"the console of {source.where} is at {url_of(listening, settings)}", flush=True)
        number = runner.run(serve_until_signal(ConsoleServer(source, settings, sources), listening))
    if number:
        signal.raise_signal(number)
    return 0


def _sources(source: ServedRuns | ServedArchive) -> Sources:
    """Return who may read. Raises InvalidValue for an archive alone."""
    if source.folder is None:
        raise InvalidValue(
            f"{source.where} is an archive, which has no folder for tokens: listen on this machine alone and forward "
            "the port, or restore the run and serve its folder"
        )
    return Sources(source.folder)


def _manage(sources: Sources, issue: str | None, revoke: str | None) -> int:
    if issue:
        before = sources.rights(issue).may if issue in sources.names else ()
        if before is None:
            raise InvalidValue(f"{issue} is a source of prompts without limits: give the console a name of its own")
        print(sources.issue(issue, dict.fromkeys((*before, Scope.VIEW))))
    if revoke:
        sources.revoke(revoke)
    return 0

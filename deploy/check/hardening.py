"""Restrictions of each pod in the manifests, so that malicious code in it can reach little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from deploy.check.kuberay import KINDS, templates

POD = {
    "automountServiceAccountToken": False,
    "securityContext.runAsNonRoot": True,
    "securityContext.seccompProfile.type": "RuntimeDefault",
}
CONTAINER = {
    "securityContext.allowPrivilegeEscalation": False,
    "securityContext.readOnlyRootFilesystem": True,
    "securityContext.capabilities.drop": ["ALL"],
}
FORBIDDEN = ("hostNetwork", "hostPID", "hostIPC")
WRITTEN = ("/tmp", "/home/slime", "/dev/shm", "/runs")
"""Folders that Ray, its workers and compilers write to: in a read-only container, each must be a volume."""


def loose_ends(manifests: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each missing restriction of a pod, and for each pod without a network policy."""
    policies = [body["spec"]["podSelector"]["matchLabels"] for body in manifests if body["kind"] == "NetworkPolicy"]
    for manifest in manifests:
        if manifest["kind"] not in KINDS:
            continue
        for name, template in templates(manifest).items():
            where = f"{manifest['kind']} {name}"
            labels = template.get("metadata", {}).get("labels", {})
            if not any(policy.items() <= labels.items() for policy in policies):
                yield f"{where}: no NetworkPolicy selects its labels"
            yield from (f"{where}: {what}" for what in _of_pod(template["spec"]))


def _of_pod(spec: dict[str, Any]) -> Iterator[str]:
    yield from _missing(spec, POD)
    yield from (f"{field} is set" for field in FORBIDDEN if spec.get(field))
    yield from (f"volume {volume['name']} is a hostPath" for volume in spec.get("volumes", ()) if "hostPath" in volume)
    for container in spec["containers"]:
        yield from (f"{container['name']}: {what}" for what in _missing(container, CONTAINER))
        if "limits" not in container.get("resources", {}):
            yield f"{container['name']}: no resource limits"
        mounted = {mount["mountPath"] for mount in container.get("volumeMounts", ())}
        needed = WRITTEN if "/runs" in mounted else WRITTEN[:2]
        yield from (f"{container['name']}: {path} is not writable" for path in needed if path not in mounted)


def _missing(values: dict[str, Any], expected: dict[str, Any]) -> Iterator[str]:
    for path, value in expected.items():
        actual: object = values
        for name in path.split("."):
            actual = actual.get(name) if isinstance(actual, dict) else None
        if actual != value:
            yield f"{path} is not {value}"

"""What each pod of the manifests does without, so that code which runs in it by mistake reaches little."""

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
"""Folders of a read-only container that Ray, its workers and compilers write to: each has to be a volume."""


def loose_ends(manifests: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A sentence for each thing that a pod has and should do without, and for each pod that no policy is for."""
    policies = [one["spec"]["podSelector"]["matchLabels"] for one in manifests if one["kind"] == "NetworkPolicy"]
    for manifest in manifests:
        if manifest["kind"] not in KINDS:
            continue
        for name, template in templates(manifest).items():
            where = f"{manifest['kind']} {name}"
            labels = template.get("metadata", {}).get("labels", {})
            if not any(policy.items() <= labels.items() for policy in policies):
                yield f"{where}: no NetworkPolicy is for its labels"
            yield from (f"{where}: {what}" for what in _of_pod(template["spec"]))


def _of_pod(spec: dict[str, Any]) -> Iterator[str]:
    yield from _missing(spec, POD)
    yield from (f"{field} is set" for field in FORBIDDEN if spec.get(field))
    yield from (f"volume {one['name']} is the node's" for one in spec.get("volumes", ()) if "hostPath" in one)
    for container in spec["containers"]:
        yield from (f"{container['name']}: {what}" for what in _missing(container, CONTAINER))
        if "limits" not in container.get("resources", {}):
            yield f"{container['name']}: no limits of its resources"
        mounted = {one["mountPath"] for one in container.get("volumeMounts", ())}
        needed = WRITTEN if "/runs" in mounted else WRITTEN[:2]
        yield from (f"{container['name']}: {path} cannot be written" for path in needed if path not in mounted)


def _missing(values: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    for path, value in wanted.items():
        found: Any = values
        for name in path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        if found != value:
            yield f"{path} is not {value}"

"""JSON Schema of the fields of KubeRay's kinds (`ray.io/v1`) that the manifests use, from KubeRay's API reference.

The schema refuses any other field, and so finds misspelt fields. It does not show whether KubeRay still has the fields.
Kubernetes' own schema checks the templates of pods.
"""

from typing import Any


def _object(required: tuple[str, ...], **properties: object) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


_TEXT, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
_START = {"type": "object", "additionalProperties": _TEXT}  # numbers are strings too
_POD = _object(("spec",), spec={"type": "object"}, metadata={"type": "object"})
_CLUSTER = _object(
    ("rayVersion", "headGroupSpec", "workerGroupSpecs"),
    rayVersion=_TEXT,
    authOptions=_object(("mode",), mode={"enum": ["disabled", "token"]}),
    headGroupSpec=_object(("rayStartParams", "template"), rayStartParams=_START, template=_POD),
    workerGroupSpecs={
        "type": "array",
        "items": _object(
            ("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"),
            groupName=_TEXT,
            replicas=_COUNT,
            minReplicas=_COUNT,
            maxReplicas=_COUNT,
            rayStartParams=_START,
            template=_POD,
        ),
    },
)
_JOB = _object(
    ("entrypoint", "rayClusterSpec"),
    entrypoint=_TEXT,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    backoffLimit=_COUNT,
    shutdownAfterJobFinishes={"type": "boolean"},
    ttlSecondsAfterFinished=_COUNT,
    submitterPodTemplate=_POD,
    rayClusterSpec=_CLUSTER,
)


def _kind(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"type": "object", "required": ["name"]}
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "ray.io/v1"},
        kind={"const": name},
        metadata=metadata,
        spec=spec,
    )


SUBMITTER = "submitter"
KINDS = {name: _kind(name, spec) for name, spec in (("RayCluster", _CLUSTER), ("RayJob", _JOB))}


def pods(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the specs of Ray's pods by the name of their group."""
    return {name: template["spec"] for name, template in templates(manifest).items() if name != SUBMITTER}


def templates(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the templates of all pods by the name of their group, and the template of the job's submitter."""
    spec = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    workers = {group["groupName"]: group["template"] for group in spec["workerGroupSpecs"]}
    submitter = manifest["spec"].get("submitterPodTemplate")
    return {"head": spec["headGroupSpec"]["template"], **workers, **({SUBMITTER: submitter} if submitter else {})}

"""What the manifests use of KubeRay's kinds (`ray.io/v1`), as JSON Schema: hand-written from KubeRay's API reference.

Anything else in a manifest is refused, so a misspelt field is found; whether KubeRay still has these fields is not.
Templates of pods are not looked into here: Kubernetes' own schema is for them.
"""

from typing import Any


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


_TEXT, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
_START = {"type": "object", "additionalProperties": _TEXT}  # values are texts, numbers too
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
    """The specs of Ray's pods, by name of the group."""
    return {name: template["spec"] for name, template in templates(manifest).items() if name != SUBMITTER}


def templates(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The templates of all its pods: by name of the group, and that of who submits the job."""
    spec = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    workers = {group["groupName"]: group["template"] for group in spec["workerGroupSpecs"]}
    submitter = manifest["spec"].get("submitterPodTemplate")
    return {"head": spec["headGroupSpec"]["template"], **workers, **({SUBMITTER: submitter} if submitter else {})}

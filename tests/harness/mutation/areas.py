"""`AREAS`: the parts whose tests are tried with faults, and the tests that may notice them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


LONG = ("tests/simulation/test_crash.py", "tests/conductor/test_promises.py")
"""Minutes, over examples drawn at random: too long for one fault."""


@dataclass(frozen=True, slots=True)
class Area:
    """files, tests: files and folders, without the folders in them. Of tests: light ones, each fault takes some."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]

    def paths(self, root: Path) -> list[str]:
        """Its product files."""
        return _matching(root, self.files, "[a-z]*.py")

    def test_files(self, root: Path) -> list[str]:
        """Its test files; those of chaos and of whole runs are in no area."""
        return _matching(root, self.tests, "test_*.py")


def _matching(root: Path, names: tuple[str, ...], pattern: str) -> list[str]:
    paths = (root / name for name in names)
    files = (file for path in paths for file in (path.glob(pattern) if path.is_dir() else [path]))
    return sorted({file.relative_to(root).as_posix() for file in files}.difference(LONG))


_STEP = ["trained", "trainee", "forward", "optimizer"]
_INBOX = ["inbox", "inbox_actor", "offered_prompts", "offered_rollouts"]
_VIEWS = ["export", "lineage", "metrics"]
_ROUND = ("tests/state", "tests/conductor", "tests/simulation", "tests/replay")

AREAS = {
    area.name: area
    for area in (
        Area(
            "state",
            files=(
                "slime_events/core",
                "slime_events/core/devices",
                "slime_events/core/state",
                "slime_events/loop/training",
            ),
            tests=(*_ROUND, "tests/actors", "tests/devices"),
        ),
        Area(
            "conductor",
            files=("slime_events/loop/conductor", "slime_events/plugins/filters", "actors/conductor.py"),
            tests=(*_ROUND, "tests/filters", "tests/plug_points", "tests/actors/test_conductor.py"),
        ),
        Area(
            "storage",
            files=("storage", "storage/archive", "storage/jetstream", "storage/nats", "storage/weights"),
            tests=("tests/storage", "tests/storage/log", "tests/harness/strangers"),
        ),
        Area(
            "trainer",
            files=(
                *("slime_events/algorithms", "slime_events/algorithms/estimators", "actors/trainer"),
                *("actors/learner/followed_batches.py", *(f"actors/megatron/{name}.py" for name in _STEP)),
                "actors/step",
            ),
            tests=(
                *(
                    "tests/algorithms",
                    "tests/step",
                    "tests/megatron",
                    "tests/actors",
                    "tests/harness/conformance",
                    "tests/rescore",
                ),
                "tests/simulation/test_trainer_recovery.py",
            ),
        ),
        Area(
            "graders",
            files=("slime_events/plugins/rewards", "slime_events/core/child", "actors/grader.py"),
            tests=(
                *("tests/rewards", "tests/child", "tests/harness/conformance", "tests/plug_points"),
                *("tests/actors/test_grader.py", "tests/simulation/test_grading.py"),
            ),
        ),
        Area(
            "audit", files=("slime_events/analysis/audit",), tests=("tests/audit", "tests/simulation/test_recalled.py")
        ),
        Area(
            "gateway",
            files=("serve_apps/http/gateway", "slime_events/app/gateway_client.py"),
            tests=("tests/gateway", "tests/security", "tests/agents", "tests/cli/test_produce.py"),
        ),
        Area(
            "agents",
            files=(
                "serve_apps/rollouts/agents",
                "serve_apps/rollouts/agents/dialects",
                "serve_apps/http/agent_command",
            ),
            tests=("tests/agents", "tests/agent_command", "tests/gateway"),
        ),
        Area("tinker", files=("serve_apps/http/tinker",), tests=("tests/tinker", "tests/gateway")),
        Area(
            "data",
            files=("slime_events/loop/prompts", "slime_events/client", *(f"actors/{name}.py" for name in _INBOX)),
            tests=("tests/data", "tests/conductor", "tests/actors/test_inbox.py", "tests/gateway", "tests/export"),
        ),
        Area(
            "plugins",
            files=("slime_events/plugins", "serve_apps/rollouts/generate", "serve_apps/rollouts/rollout_function"),
            tests=(
                *(
                    "tests/plug_points",
                    "tests/generate",
                    "tests/rollout_function",
                    "tests/data",
                    "tests/harness/conformance",
                ),
                *("tests/filters", "tests/hostile", "tests/docs/test_plug_points.py"),
            ),
        ),
        Area(
            "query",
            files=tuple(f"slime_events/analysis/{name}" for name in ("query", "query/tables", "views", *_VIEWS)),
            tests=("tests/query", *(f"tests/{name}" for name in _VIEWS), "tests/cli"),
        ),
    )
}
"""By name. A fault of the list may name another part; it is tried with the tests that it names."""

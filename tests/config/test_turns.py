"""slime's flags for turns: what each combination means on a GPU and on a CPU, and what is refused."""

from __future__ import annotations

import pytest

from schemas.errors import ConfigError
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.combinations import impossible
from slime_events.core.config.derivations import on_device
from slime_events.core.config.idle import idle_on_cpu
from slime_events.core.config.settings import TrainSettings

BASE = "--hf-checkpoint m --num-rollout 1 --prompt-data p.jsonl --rm-type math "


def run_of(words: str) -> TrainSettings:
    return parse_train((BASE + words).split()).settings


@pytest.mark.parametrize(
    ("words", "on_gpu", "on_cpu"),
    [
        ("--colocate", True, False),
        ("--colocate --offload", True, True),
        ("--colocate --offload-train", True, True),
        ("--colocate --offload-train --offload-rollout", True, True),
        ("--colocate --no-offload-train --no-offload-rollout", False, False),
        ("--colocate --offload --no-offload-train --no-offload-rollout", False, False),
        ("", False, False),
        ("--colocate --debug-rollout-only", False, False),
        ("--colocate --offload --debug-rollout-only", False, False),
    ],
)
def test_whether_ranks_and_engines_take_turns(words: str, on_gpu: bool, on_cpu: bool) -> None:
    settings = run_of(words)
    for device, expected in (("cuda", on_gpu), ("cpu", on_cpu)):
        run = on_device(settings, device)  # type: ignore[arg-type]
        assert run.engine.takes_turns is expected
        assert on_device(run, device) == run  # type: ignore[arg-type]
        assert not [problem for problem in impossible(run) if "offload" in problem]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--offload", "colocate"),
        ("--offload-train --offload-rollout", "colocate"),
        ("--colocate --no-offload-train --offload-rollout", "take turns only if both"),
        ("--colocate --offload --no-offload-rollout", "take turns only if both"),
        ("--colocate --offload --max-staleness 1", "max_staleness"),
        ("--colocate --offload --update-weights-interval 2", "max_staleness"),
        ("--colocate --offload --tinker 127.0.0.1:1", "tinker"),
        ("--colocate --offload --ray-address auto", "ray_address"),
        ("--colocate --offload --actor-num-nodes 2", "actor_num_nodes"),
        ("--colocate --offload --update-weight-transport collective", "update_weight_transport"),
    ],
)
def test_what_turns_exclude_is_refused(words: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as refusal:
        run_of(words)
    assert "offload" in str(refusal.value)


@pytest.mark.parametrize(
    "words",
    [
        "--max-staleness 1", "--update-weights-interval 2", "--tinker 127.0.0.1:1", "--ray-address auto",
        "--actor-num-nodes 2", "--update-weight-transport collective",
    ],
)  # fmt: skip
def test_runs_that_cannot_take_turns_share_gpus_side_by_side(words: str) -> None:
    """Earlier versions did so too: runs that they started can be resumed."""
    settings = on_device(run_of(f"--colocate {words}"), "cuda")
    assert not settings.engine.takes_turns
    assert not [problem for problem in impossible(settings) if "offload" in problem]


def test_colocate_has_an_effect_on_the_cpu_only_with_turns() -> None:
    assert any("colocate" in note for note in idle_on_cpu(run_of("--colocate")))
    assert not any("colocate" in note for note in idle_on_cpu(run_of("--colocate --offload")))

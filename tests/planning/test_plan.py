"""A plan places everything or says what is missing, and its memory follows the settings."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.megatron.families.registry import architecture_of
from actors.megatron.planned_model import PlannedArchitecture
from schemas.errors import InvalidValue
from slime_events.app.launch.machine_facts import described, facts_of
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.machine.gpus import Machine
from slime_events.core.planning.assumptions import GIB, Assumptions, read_assumptions
from slime_events.core.planning.facts import Facts
from slime_events.core.planning.needs import Needs
from slime_events.core.planning.placement import PlaceRequest, place_all
from slime_events.core.planning.plan import Plan, Resource, Verdict, make_plan
from slime_events.core.planning.smallest import smallest_fits
from tests import made
from tests.megatron.published import PUBLISHED

H100 = 80 * GIB
PACKED = {"use_dynamic_batch_size": True}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def qwen(name: str = "qwen3-4B", **options: Any) -> PlannedArchitecture:
    return PlannedArchitecture(architecture_of(PUBLISHED[name].config), **options)


def settings(
    engine: dict[str, Any] | None = None, rollout: dict[str, Any] | None = None, **trainer: Any
) -> TrainSettings:
    return made.settings(
        trainer=TrainerSettings(**{"hf_checkpoint": "m", "megatron": FULL} | trainer),
        engine=EngineSettings(**(engine or {})),
        rollout=RolloutSettings(**{"rollout_batch_size": 32, "n_samples_per_prompt": 8} | (rollout or {})),
    )


def plan(chosen: TrainSettings, gpus: tuple[int, ...] = (8,), size: int | None = H100) -> Plan:
    return make_plan(Facts(gpus, size), chosen, qwen(), Assumptions())


@given(
    free=st.lists(st.integers(0, 8), max_size=4),
    ranks=st.integers(0, 12),
    together=st.sampled_from((1, 2, 4)),
    engines=st.integers(0, 4),
    each=st.sampled_from((1, 2, 4, 8, 16)),
    shared=st.booleans(),
)
def test_a_machine_never_has_more_than_its_gpus(
    free: list[int], ranks: int, together: int, engines: int, each: int, shared: bool
) -> None:
    request = PlaceRequest(ranks, together, 0 if shared else engines, each)
    shares = place_all(free, request, engines if shared else 0)
    needed = max(ranks, engines * each) if shared else ranks + engines * each
    if shares is None:
        return
    assert needed <= sum(free)
    assert sum(share.ranks for share in shares) == ranks
    assert {engine for share in shares for engine in share.engines} == set(range(engines))
    for share in shares:
        taken = min(share.gpus, each) * len(share.engines)
        assert max(share.ranks, taken) <= share.gpus
        assert shared or share.ranks + taken <= share.gpus


def test_an_engine_of_several_machines_takes_all_of_each() -> None:
    shares = place_all([8] * 6, PlaceRequest(16, 8, 2, 16))
    assert shares is not None
    assert [(share.ranks, share.engines) for share in shares] == [
        (8, ()), (8, ()), (0, (0,)), (0, (0,)), (0, (1,)), (0, (1,)),
    ]  # fmt: skip
    assert place_all([8] * 5, PlaceRequest(16, 8, 2, 16)) is None
    assert place_all([8, 8], PlaceRequest(0, 1, 1, 12)) is None


def test_one_rank_has_eighteen_bytes_of_a_parameter_and_copies_divide_twelve_of_them() -> None:
    alone, eight = plan(settings()).rank, plan(settings(actor_num_gpus_per_node=8)).rank
    assert alone is not None
    assert eight is not None
    assert alone.state == 18 * 4_022_468_096
    assert eight.state == pytest.approx((6 + 12 / 8) * 4_022_468_096, rel=1e-6)


def test_a_critic_has_the_state_of_another_model_and_frozen_models_wait_on_the_host() -> None:
    chosen, facts = settings(), Facts((8,), 1000 * GIB)
    one, two = (make_plan(facts, chosen, model, Assumptions()).rank for model in (qwen(), qwen(critic=True, frozen=2)))
    assert one is not None
    assert two is not None
    assert two.state == 2 * one.state
    assert (one.host, two.host) == (0, 4 * 4_022_468_096)


def test_an_offloaded_optimizer_is_host_memory_and_a_machine_can_have_too_little() -> None:
    chosen = settings(actor_num_gpus_per_node=4, megatron=FULL | {"optimizer_cpu_offload": True})
    rank = plan(chosen).rank
    assert rank is not None
    assert rank.host == 12 * 4_022_468_096
    facts = Facts((8,), H100, host_bytes=179 * GIB)
    (shortage,) = make_plan(facts, chosen, qwen(), Assumptions()).shortages
    assert (shortage.resource, shortage.needed) == (Resource.HOST_MEMORY, 4 * rank.host)
    assert plan(chosen).verdict is Verdict.FITS


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({"megatron": {}}, {}),
        (PACKED | {"max_tokens_per_gpu": 9000}, PACKED | {"max_tokens_per_gpu": 3000}),
        ({}, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
        ({"log_probs_chunk_size": -1}, {}),
        ({}, {"context_parallel_size": 2}),
    ],
)
def test_settings_that_save_memory_do_so_in_a_plan(more: dict[str, Any], less: dict[str, Any]) -> None:
    first, second = (plan(settings(actor_num_gpus_per_node=2, **trainer)).rank for trainer in (more, less))
    assert first is not None
    assert second is not None
    assert first.activations + first.logits > second.activations + second.logits


def test_a_pipelines_first_stage_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    from actors.megatron.activations import activation_bytes
    from actors.megatron.layout import Layout

    model, layout = architecture_of(PUBLISHED["qwen3-4B"].config), Layout(pipeline=4)
    kept = [activation_bytes(model, layout, {}, stage, 1000, 1.0) for stage in range(4)]
    assert [round(part / kept[-1]) for part in kept] == [4, 3, 2, 1]
    virtual = activation_bytes(model, Layout(pipeline=4, virtual=3), {}, 0, 1000, 1.0)
    assert virtual == pytest.approx(kept[0] * (1 + 3 / (4 * 3)))


def test_too_few_gpus_are_named_with_their_number() -> None:
    found = plan(settings({"rollout_num_gpus": 8}, actor_num_gpus_per_node=8))
    assert [(short.resource, short.needed, short.available) for short in found.shortages] == [(Resource.GPUS, 16, 8)]
    assert found.verdict is Verdict.TOO_SMALL
    assert found.nodes is None
    assert smallest_fits(found, settings({"rollout_num_gpus": 8}, actor_num_gpus_per_node=8), qwen())[0].gpus == 16


def test_as_many_engines_as_fit_on_the_machines_that_are_there_are_a_change() -> None:
    chosen = settings({"rollout_num_gpus": 12, "rollout_num_gpus_per_engine": 4}, actor_num_gpus_per_node=4)
    found = plan(chosen, (8, 6))
    assert {remedy.change: remedy.gpus for remedy in smallest_fits(found, chosen, qwen())} == {
        "2 machines of 8 GPUs": 16,
        "--rollout-num-gpus 8": 12,
    }
    none = plan(chosen, (4,))
    assert [remedy.change for remedy in smallest_fits(none, chosen, qwen())] == ["4 machines of 4 GPUs"]


def test_several_changes_at_once_are_flags_that_start_together() -> None:
    engine = {"colocate": True, "rollout_num_gpus_per_engine": 2, "sglang": {"mem_fraction_static": 0.08}}
    chosen = settings(engine, {"rollout_max_response_len": 65536}, actor_num_gpus_per_node=2)
    found = plan(chosen, size=48 * GIB)
    changes = [remedy.change for remedy in smallest_fits(found, chosen, qwen())]
    assert len(changes) == 1
    assert changes[0].count("--rollout-num-gpus ") == 1
    assert changes[0].endswith("--rollout-num-gpus-per-engine 8 --rollout-num-gpus 8, without --colocate")


def test_what_exceeds_a_gpu_by_exact_numbers_is_certain() -> None:
    state, estimate = plan(settings(), size=60 * GIB).shortages[0], plan(settings(), size=68 * GIB).shortages[0]
    assert (state.resource, state.certain) == (Resource.RANK_MEMORY, True)
    assert (estimate.resource, estimate.certain) == (Resource.RANK_MEMORY, False)


def test_ranks_and_engines_of_a_shared_gpu_fit_side_by_side_or_in_turns() -> None:
    eight: dict[str, Any] = {"actor_num_gpus_per_node": 8}
    apart = {"colocate": True, "offload_train": False, "offload_rollout": False}
    beside = plan(settings(apart, **eight))
    assert beside.verdict is Verdict.FITS
    assert beside.shared_bytes == (beside.rank and beside.engine and beside.rank.total + beside.engine.total)
    large = {"mem_fraction_static": 0.8}
    crowded = plan(settings(apart | {"sglang": large}, **eight))
    assert [shortage.resource for shortage in crowded.shortages] == [Resource.SHARED_MEMORY]
    assert crowded.verdict is Verdict.TOO_SMALL
    turns = plan(settings({"colocate": True}, **eight))
    assert turns.verdict is Verdict.IN_TURNS
    assert turns.engine == crowded.engine
    assert turns.turn_bytes == (turns.rank and turns.engine and max(turns.rank.total, turns.engine.total) + 2 * GIB)
    waiting = turns.rank and turns.rank.weights + turns.rank.optimizer
    assert (beside.host_bytes, turns.host_bytes) == (0, waiting)
    least = changed(turns.facts, host_bytes=8 * turns.host_bytes)
    assert not make_plan(least, settings({"colocate": True}, **eight), qwen(), turns.assumed).shortages
    less = changed(least, host_bytes=8 * turns.host_bytes - 1)
    (shortage,) = make_plan(less, settings({"colocate": True}, **eight), qwen(), turns.assumed).shortages
    assert shortage.resource is Resource.HOST_MEMORY


def test_a_gpu_too_small_for_turns_is_refused() -> None:
    """An engine's share and what the resting rank keeps are more than the GPU has."""
    chosen = settings({"colocate": True, "sglang": {"mem_fraction_static": 0.95}}, actor_num_gpus_per_node=8)
    (shortage,) = plan(chosen).shortages
    assert shortage.resource in (Resource.SHARED_MEMORY, Resource.ENGINE_MEMORY)


def test_engines_that_share_gpus_have_one_gpu() -> None:
    eight: dict[str, Any] = {"actor_num_gpus_per_node": 8}
    beside = plan(settings({"colocate": True}, **eight))
    wide = plan(settings({"colocate": True, "rollout_num_gpus_per_engine": 2}, **eight))
    assert wide.limits
    assert not beside.limits


def test_an_engine_holds_its_weights_and_one_longest_sample() -> None:
    chosen = settings({"sglang": {"mem_fraction_static": 0.095}})
    (shortage,) = (short for short in plan(chosen).shortages if short.resource is Resource.ENGINE_MEMORY)
    assert not shortage.certain  # 7.5 of 7.6 GiB are weights
    longer = settings({"sglang": {"mem_fraction_static": 0.11}}, {"rollout_max_response_len": 100_000})
    assert Resource.ENGINE_MEMORY in {short.resource for short in plan(longer).shortages}
    assert Resource.ENGINE_MEMORY not in {short.resource for short in plan(settings()).shortages}


def test_steps_that_overlap_take_the_longer_time() -> None:
    one, two = (plan(settings(rollout={"max_staleness": bound})).speed for bound in (0, 1))
    assert one is not None
    assert two is not None
    assert one.step_s == one.generate_s + one.train_s
    assert two.step_s == max(two.generate_s, two.train_s)


def test_without_the_memory_of_a_gpu_only_places_are_planned() -> None:
    found = plan(settings(actor_num_gpus_per_node=4), size=None)
    assert (found.engine, found.speed, found.volumes, found.shortages) == (None, None, None, ())
    assert found.nodes is not None
    assert found.nodes[0].ranks == 4


def test_a_thousand_gpus_are_planned() -> None:
    chosen = settings(
        {"rollout_num_gpus": 512, "rollout_num_gpus_per_engine": 8}, actor_num_nodes=64, actor_num_gpus_per_node=8
    )
    assert plan(chosen, (8,) * 128).nodes is not None
    assert plan(chosen, (8,) * 100).nodes is None


def test_machines_are_described_by_flags_or_looked_at() -> None:
    needs = Needs(ranks=12, engines=3, each=4, together=4)
    assert described(None, None, None, None, needs) == Facts((8,) * 4, H100, added=8)
    assert described(2, 4, 141, 1500, needs) == Facts((4, 4), 141 * GIB, 1500 * GIB)
    assert described(None, None, None, None, Needs(ranks=1, engines=1)) == Facts((2,), H100, added=8)
    assert described(None, None, None, None, Needs(ranks=16, engines=8, each=2, shared=True)) == Facts(
        (8, 8), H100, added=8
    )
    with pytest.raises(InvalidValue, match="--nodes 0"):
        described(0, None, None, None, needs)
    seen = Machine(files=("/dev/nvidia0", "/dev/nvidia1"), seen=("H100", "H100"), gpu_bytes=H100)
    assert facts_of([seen, Machine()]) == Facts((2,), H100, source="the machines")
    assert facts_of([seen, replace(seen, gpu_bytes=None)]).gpu_bytes is None


def test_assumptions_are_read_by_name() -> None:
    assert read_assumptions(["gpu_tflops=312", "prompt-tokens=100"]) == replace(
        Assumptions(), gpu_tflops=312.0, prompt_tokens=100
    )
    for word, part in (
        ("gpu_tflop=1", "gpu_tflops"),
        ("rank_gib=much", "much"),
        ("rank_gib=0", "above 0"),
        ("x", "NAME"),
    ):
        with pytest.raises(InvalidValue, match=part):
            read_assumptions([word])


def test_more_memory_or_fewer_bytes_are_the_only_ways_to_another_verdict() -> None:
    small = plan(settings(), size=30 * GIB)
    assert small.verdict is Verdict.TOO_SMALL
    assert make_plan(changed(small.facts, gpu_bytes=H100), settings(), qwen(), Assumptions()).verdict is Verdict.FITS


def test_if_no_single_change_is_enough_the_smallest_layout_is_named() -> None:
    chosen, model = settings(megatron={}), qwen("glm4.5-355B-A32B")
    short = make_plan(Facts((8,), H100), chosen, model, Assumptions())
    assert {shortage.resource for shortage in short.shortages} == {Resource.RANK_MEMORY, Resource.ENGINE_MEMORY}
    (remedy,) = smallest_fits(short, chosen, model)
    assert remedy.verdict is Verdict.FITS
    assert 352_800_000_000 * 6 / H100 < remedy.gpus < 200
    assert "--expert-model-parallel-size" in remedy.change

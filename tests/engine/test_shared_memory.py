"""The cache of an engine that shares its GPU: the same size in any order of starts. The GPU is a script of numbers."""

from __future__ import annotations

import ast
import gc
import math
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import EngineError
from serve_apps.engines import shared_memory
from serve_apps.engines.arguments import _sglang_folder
from serve_apps.engines.plugin import SWITCH, register
from serve_apps.engines.shared_memory import GIB, SHARE, DeviceMemory, cache_bytes, sized_by_total

TOTAL, CONTEXT, WEIGHTS = 80 * GIB, GIB // 2, 8 * GIB
PAGE = 64 * 144 * 1024
"""Bytes of 64 tokens' keys and values: 36 layers, 8 heads of 128, bfloat16."""


class Gpu:
    """Hold the bytes on it by owner."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}

    @property
    def free(self) -> int:
        return TOTAL - sum(self.taken.values())


def sglangs_own(names: dict[str, Any]) -> Callable[..., int]:
    """SGLang's computation, out of its installed file: with all that the file imports it takes seconds. names: the
    globals that it reads.
    """
    tree = ast.parse((_sglang_folder() / "srt" / "mem_cache" / "kv_cache_configurator.py").read_text())
    [method] = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "_profile_available_bytes"
    ]
    exec(compile(ast.Module([method], []), "kv_cache_configurator.py", "exec"), names)
    function: Callable[..., int] = names["_profile_available_bytes"]
    return function


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Replace the GPU that our hook sees."""
    gpu = Gpu()
    monkeypatch.setattr(shared_memory, "static_fraction", lambda: 0.4)
    monkeypatch.setattr(
        shared_memory, "read_memory", lambda _: DeviceMemory(TOTAL, gpu.free, gpu.taken.get("weights", 0))
    )
    monkeypatch.setenv(SHARE, "0.4")
    return gpu


def profile_of(gpu: Gpu) -> Callable[..., int]:
    """SGLang's computation on this GPU, with all that it reads of its configuration."""
    prefill = SimpleNamespace(full_prefill_max_req=None, backend=None)
    fields = {
        "get_schedule": SimpleNamespace(mem_fraction_static=0.4, prefill_max_requests=None, max_mamba_cache_size=None),
        "get_parallel": SimpleNamespace(launch_world_size=1, world_group=SimpleNamespace(cpu_group=None)),
        "get_exec": SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=SimpleNamespace(prefill=prefill))),
        "get_disagg": SimpleNamespace(disaggregation_mode="null"),
        "get_mm": SimpleNamespace(mm_feature_transport=None),
    }
    names: dict[str, Any] = {name: lambda value=value: value for name, value in fields.items()}
    names |= {"gc": gc, "math": math, "get_available_gpu_memory": lambda *_, **__: gpu.free / GIB}
    return sglangs_own(names | {"mm_runtime_reservation_gb": lambda **_: 0.0})


class Engine:
    """Starts as SGLang does: a context, a look at what is free, the weights, then the cache."""

    def __init__(self, gpu: Gpu, *, hooked: bool) -> None:
        self.gpu, self.hooked = gpu, hooked

    def begin(self) -> None:
        self.gpu.taken["context"] = CONTEXT
        self.before = self.gpu.free / GIB

    def cache(self) -> int:
        """Bytes, which are then taken."""
        self.gpu.taken["weights"] = WEIGHTS
        model = SimpleNamespace(is_multimodal=False)
        own: Any = SimpleNamespace(
            device="cuda", gpu_id=0, mambaish_config=None, post_capture_kv_active=False, model_config=model
        )
        profile = profile_of(self.gpu)
        size = sized_by_total(profile, own, self.before) if self.hooked else profile(own, self.before)
        self.gpu.taken["cache"] = size
        return int(size)

    def end(self) -> None:
        for name in ("context", "weights", "cache"):
            del self.gpu.taken[name]


def sizes(gpu: Gpu, rank: int, *, hooked: bool) -> dict[str, int]:
    """Bytes of the cache, by who was first. rank: bytes that the rank takes."""
    engine, sizes_ = Engine(gpu, hooked=hooked), {}
    engine.begin()
    sizes_["engine first"] = engine.cache()
    gpu.taken["rank"] = rank
    engine.end()
    engine.begin()
    sizes_["again beside a rank that is loaded"] = engine.cache()
    engine.end()
    del gpu.taken["rank"]
    engine.begin()
    gpu.taken["rank"] = rank  # while the engine reads its weights
    sizes_["both at once"] = engine.cache()
    engine.end()
    gpu.taken["rank"] = rank // 2  # it is loaded, and has not trained yet
    engine.begin()
    sizes_["rank first"] = engine.cache()
    engine.end()
    del gpu.taken["rank"]
    return sizes_


@pytest.mark.parametrize("rank", [0, 20 * GIB, 47 * GIB])
def test_the_cache_has_one_size_whoever_is_first(gpu: Gpu, rank: int) -> None:
    sizes_ = sizes(gpu, rank, hooked=True)
    assert max(sizes_.values()) - min(sizes_.values()) < PAGE
    assert min(sizes_.values()) == pytest.approx(0.4 * TOTAL - WEIGHTS, abs=PAGE)


def test_without_it_the_size_is_by_who_is_first(gpu: Gpu) -> None:
    """The script is one in which it matters, so the test above has something to notice."""
    sizes_ = sizes(gpu, 20 * GIB, hooked=False)
    assert sizes_["engine first"] - sizes_["rank first"] > 3 * GIB
    assert sizes_["engine first"] - sizes_["again beside a rank that is loaded"] > 7 * GIB


@pytest.mark.parametrize("shares", [False, True])
def test_engines_that_share_a_gpu_alone_are_changed(monkeypatch: pytest.MonkeyPatch, *, shares: bool) -> None:
    hooks: list[Any] = []
    kinds = SimpleNamespace(BEFORE="before", AFTER="after", AROUND="around")
    registry = SimpleNamespace(
        register=lambda target, hook, kind: hooks.append((target.rpartition(".")[2], hook, kind))
    )
    module = SimpleNamespace(HookRegistry=registry, HookType=kinds)
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", module)
    monkeypatch.setenv(SWITCH, "cuda")
    monkeypatch.delenv(SHARE, raising=False)
    if shares:
        monkeypatch.setenv(SHARE, "0.4")
    register()
    assert (("_profile_available_bytes", sized_by_total, "around") in hooks) == shares


@given(st.floats(0.05, 0.95), st.integers(1, 200 * GIB), st.floats(0, 1), st.floats(0, 1))
def test_a_cache_is_within_the_share_and_within_what_is_free_or_refused(
    share: float, total: int, own: float, others: float
) -> None:
    mine = int(own * total)
    memory = DeviceMemory(total, int((total - mine) * (1 - others)), mine)
    try:
        size = cache_bytes(share, memory)
    except EngineError:
        assert int(share * total) - mine <= 0 or int(share * total) - mine > memory.free
        return
    assert 0 < size <= memory.free
    assert size + mine == pytest.approx(share * total, abs=1)


@pytest.mark.parametrize(
    ("taken", "named"),
    [
        ({"weights": 40 * GIB}, ["0.4", "32.0 GiB", "80.0 GiB", "40.0 GiB", "larger"]),
        ({"weights": 8 * GIB, "rank": 60 * GIB}, ["24.0 GiB", "12.0 GiB", "smaller", "rank"]),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(gpu: Gpu, taken: dict[str, int], named: list[str]) -> None:
    gpu.taken = taken
    with pytest.raises(EngineError) as caught:
        cache_bytes(0.4, shared_memory.read_memory(0))
    assert [word for word in named if word not in str(caught.value)] == []

"""The names of slime's that users' files import do what their users expect."""
# ruff: noqa: E402  there is no slime before its aliases are installed

from __future__ import annotations

import asyncio
import base64
import importlib
import ipaddress
import json
import multiprocessing
import re
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from schemas.errors import InvalidValue, PlugPointError, PlugPointMissing
from schemas.rollouts import Sampling
from serve_apps.rollouts.generate.session import Session, session_of_process
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import load_function
from slime_events.plugins.rewards import messages
from slime_events.plugins.rewards.choice import Choice
from slime_events.plugins.sample import Sample
from slime_events.plugins.slime.aliases import install_slime_aliases
from slime_events.plugins.slime.modules import NOT_HERE, SLIME_MODULES
from tests.simulation.parts import Letters

install_slime_aliases()

from slime.observability.trace_utils import build_sglang_meta_trace_attrs, trace_event, trace_function, trace_span
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput, call_rollout_fn
from slime.rollout.filter_hub.base_types import DynamicFilterOutput, MetricGatherer, call_dynamic_filter
from slime.rollout.sglang_rollout import abort, generate_rollout
from slime.utils.async_utils import run
from slime.utils.data import Dataset
from slime.utils.eval_config import EvalDatasetConfig, build_eval_dataset_configs, ensure_dataset_list
from slime.utils.http_utils import (
    _wrap_ipv6,
    find_available_port,
    get_host_info,
    init_http_client,
    is_port_available,
    run_router,
    terminate_process,
)
from slime.utils.misc import (
    SingletonMeta,
    exec_command,
    get_current_node_ip,
    get_free_port,
    should_run_periodic_action,
)
from slime.utils.processing_utils import build_processor_kwargs, encode_image_for_rollout_engine, process_vision_info
from slime.utils.types import Sample as SlimeSample


def test_a_sample_there_and_back_with_what_was_set_on_it() -> None:
    sample = SlimeSample(index=3, reward={"score": 1.0}, status=Sample.Status.TRUNCATED)
    sample.append_response_tokens(
        tokens=[1, 2],
        log_probs=[-0.5, -0.25],
        meta_info={"prompt_tokens": 8, "cached_tokens": 2, "completion_tokens": 2, "spec_verify_ct": 1,
                   "spec_accept_token_num": 1, "spec_draft_token_num": 4, "finish_reason": {"type": "stop"}},
    )  # fmt: skip
    sample.tool_calls = 2
    plain = sample.to_dict()
    assert (plain["status"], plain["tool_calls"], plain["spec_info"]["spec_verify_ct"]) == ("completed", 2, 1)
    assert plain["prefix_cache_info"] == {"cached_tokens": 2, "total_prompt_tokens": 8}
    again = SlimeSample.from_dict(json.loads(json.dumps(plain)))
    assert (again, again.tool_calls) == (sample, 2)
    assert again.prefix_cache_info.prefix_cache_hit_rate == 0.25
    assert (again.spec_info.spec_accept_rate, again.spec_info.spec_accept_length) == (0.25, 2.0)
    assert SlimeSample.from_dict({"index": 1}) == SlimeSample(index=1)
    assert SlimeSample.SpecInfo().spec_accept_rate == SlimeSample.PrefixCacheInfo().prefix_cache_hit_rate == 0.0


def test_a_sample_with_all_its_fields_reaches_a_grader() -> None:
    sample = SlimeSample(index=1, multimodal_inputs={"images": None}, trace={"events": []})
    sample.tool_calls = 2
    job = messages.Job([sample], Choice())
    (sent,) = messages.decode_jobs(messages.encode([msgspec.Raw(messages.encode_job(job))]))
    assert sent == job
    assert vars(sent.samples[0]) == vars(sample)


@pytest.mark.parametrize("evaluation", [True, False])
def test_a_rollout_function_is_called_as_slime_does(evaluation: bool) -> None:
    kind = RolloutFnEvalOutput if evaluation else RolloutFnTrainOutput
    for groups_returned in ([[1]], kind([[1]], {"a": 1})):
        output = call_rollout_fn(
            lambda *args, evaluation, returned=groups_returned: returned, "args", 3, None, evaluation=evaluation
        )
        assert isinstance(output, kind)


def test_filters_are_called_and_drops_counted() -> None:
    assert call_dynamic_filter(None, 1, []).keep is True
    assert call_dynamic_filter(lambda args, samples, flag: flag, 1, [], flag=False) == DynamicFilterOutput(keep=False)
    verdict = DynamicFilterOutput(keep=False, reason="x")
    assert call_dynamic_filter(lambda args, samples: verdict, 1, []) is verdict
    gatherer = MetricGatherer()
    for reason in ("x", "x", None):
        gatherer.on_dynamic_filter_drop(reason)
    assert gatherer.collect() == {"rollout/dynamic_filter/drop_x": 2}


def test_a_coroutine_from_plain_code_and_one_loop_for_all() -> None:
    async def loop() -> Any:
        return asyncio.get_running_loop()

    assert run(loop()) is run(loop())


def test_a_singleton_is_made_once() -> None:
    class Once(metaclass=SingletonMeta):
        def __init__(self, value: int) -> None:
            self.value = value

    assert Once(1) is Once(2)
    assert Once(3).value == 1


async def test_spans_are_kept_on_the_sample() -> None:
    sample, other = SlimeSample(index=4), SlimeSample()

    @trace_function("outer", target="sample", attrs_getter=lambda args, sample: {"args": args})
    async def outer(args: int, sample: Any) -> int:
        with trace_span([sample, other], "inner", attrs={"a": 1}) as span:
            span.set("b", 2)
        trace_event(sample, "noted")
        return args

    assert await outer(7, sample) == 7
    names = [(event["type"], event["name"], event.get("attrs")) for event in sample.trace["events"]]
    assert names == [
        ("span_start", "outer", {"args": 7}),
        ("span_start", "inner", {"a": 1}),
        ("span_end", "inner", {"b": 2}),
        ("event", "noted", None),
        ("span_end", "outer", None),
    ]
    started = sample.trace["events"]
    assert started[1]["parent_span_id"] == started[0]["span_id"]
    assert len(other.trace["events"]) == 2
    with pytest.raises(ZeroDivisionError), trace_span(sample, "broken"):
        raise ZeroDivisionError
    assert sample.trace["events"][-1]["attrs"]["error_type"] == "ZeroDivisionError"
    meta = {"id": "r", "prompt_tokens": 3, "finish_reason": {"type": "stop"}, "other": 1}
    assert build_sglang_meta_trace_attrs(meta) == {
        "prompt_tokens": 3,
        "sglang_request_id": "r",
        "finish_reason": "stop",
    }


def test_the_rows_of_a_file(tmp_path: Path) -> None:
    rows = [{"text": "a" * size, "answer": str(size), "metadata": {"n": size}} for size in (1, 9, 3, 4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = Dataset(f"{tmp_path}/rows.jsonl", Letters(), None, 5, label_key="answer", seed=1)
    assert [sample.label for sample in data.samples] == ["1", "3", "4"]
    assert (len(data), data[1].metadata) == (3, {"n": 3})
    import random

    order = list(range(3))
    random.Random(1 + 2).shuffle(order)
    data.shuffle(2)
    assert [sample.label for sample in data] == [data.origin_samples[row].label for row in order]
    with pytest.raises(NotImplementedError, match="images"):
        Dataset(f"{tmp_path}/rows.jsonl", Letters(), None, 5, multimodal_keys={"image": "path"})


@pytest.mark.parametrize("module", SLIME_MODULES)
def test_every_name_of_a_module_is_there(module: str) -> None:
    names = vars(importlib.import_module(module))
    assert set(SLIME_MODULES[module]) <= set(names)


@pytest.mark.parametrize("source", ["import slime.agent", "from slime.agent.adapters import OpenAIAdapter"])
def test_what_is_not_here_says_what_does_its_work(tmp_path: Path, source: str) -> None:
    (tmp_path / "agent.py").write_text(f"{source}\ndef generate(args, sample, sampling_params): ...\n")
    with pytest.raises(PlugPointError, match=r"slime\.agent is not here: .*--agents --gateway"):
        load_function("agent.py:generate", user_dir=tmp_path)
    with pytest.raises(PlugPointMissing, match=r"slime\.agent is not here"):
        load_function("slime.agent.adapters.OpenAIAdapter")


def test_evaluation_sets_are_read_as_slime_does() -> None:
    raw = ensure_dataset_list({"aime": {"path": "a.jsonl", "rm_type": "math"}, "gpqa": {"path": "g.jsonl", "top_k": 5}})
    assert [row["name"] for row in raw] == ["aime", "gpqa"]
    assert ensure_dataset_list([{"name": "x", "path": "p"}, None][:1]) == [{"name": "x", "path": "p"}]
    assert ensure_dataset_list(None) == []
    args = SimpleNamespace(
        eval_temperature=None, rollout_temperature=0.8, eval_top_k=3, n_samples_per_eval_prompt=4, input_key="prompt",
        rollout_stop=["\n"],
    )  # fmt: skip
    aime, gpqa = build_eval_dataset_configs(args, raw, {"max_response_len": 7, "top_k": None})
    assert (aime.name, aime.rm_type, aime.temperature, aime.top_k, aime.max_response_len) == ("aime", "math", 0.8, 3, 7)
    assert (gpqa.top_k, gpqa.n_samples_per_eval_prompt, gpqa.input_key, gpqa.stop) == (5, 4, "prompt", ["\n"])
    own = EvalDatasetConfig("x", "p", rm_type="f1", metadata_overrides={"level": 2})
    assert own.inject_metadata({"level": 1, "id": 3}) == {"level": 2, "id": 3, "rm_type": "f1"}
    assert own.inject_metadata(None) == {"level": 2, "rm_type": "f1"}
    assert own.cache_key == ("x", "p", None, None, None, None)
    for wrong in ([{"path": "p"}], 3):
        with pytest.raises((ValueError, TypeError)):
            ensure_dataset_list(wrong)
    with pytest.raises(InvalidValue, match="no key temprature"):
        build_eval_dataset_configs(args, raw, {"temprature": 1.0})
    with pytest.raises(TypeError):
        EvalDatasetConfig("x", "p", temprature=1.0)


def test_ports_hosts_and_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not is_port_available(port)
        assert get_free_port(port) > port
    assert is_port_available(find_available_port(20000))
    assert not is_port_available(70000)
    with pytest.raises(PlugPointError, match="no 3 free ports"):
        get_free_port(65534, consecutive=3)
    monkeypatch.setenv("SLIME_HOST_IP", "10.1.2.3")
    assert (get_host_info()[1], get_current_node_ip()) == ("10.1.2.3", "10.1.2.3")
    monkeypatch.delenv("SLIME_HOST_IP")
    assert ipaddress.ip_address(get_host_info()[1])
    assert [_wrap_ipv6(host) for host in ("::1", "[::1]", "host")] == ["[::1]", "[::1]", "host"]
    assert exec_command("echo $((1 + 2))", capture_output=True) == "3\n"
    with pytest.raises(subprocess.CalledProcessError):
        exec_command("exit 3")
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    process.start()
    terminate_process(process)
    assert not process.is_alive()
    assert init_http_client(None) is None
    with pytest.raises(PlugPointError, match=r"args\.sglang_router_port"):
        run_router(None)


def test_what_is_done_every_so_often() -> None:
    due = [n for n in range(10) if should_run_periodic_action(n, 4, num_rollout_per_epoch=5, num_rollout=10)]
    assert due == [3, 4, 7, 9]
    assert not any(should_run_periodic_action(n, None, 5, 10) for n in range(10))


def test_the_modules_of_the_page_are_there() -> None:
    page = (Path(__file__).parents[2] / "docs" / "coming-from-slime.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(slime\.[\w.]+)` \|", page, re.MULTILINE))
    assert len(named) > 10
    assert named <= SLIME_MODULES.keys() | NOT_HERE.keys()


def test_images_for_the_engine() -> None:
    image = SimpleNamespace(mode="RGB", save=lambda buffer, format: buffer.write(b"png"))
    encoded = encode_image_for_rollout_engine(SimpleNamespace(mode="L", convert=lambda mode: image))
    assert base64.b64decode(encoded.partition(",")[2]) == b"png"
    assert build_processor_kwargs({"images": [1], "images_kwargs": {"size": 2}})["images_kwargs"] == {
        "size": 2,
        "return_tensors": "pt",
    }
    with pytest.raises(Exception, match="qwen-vl-utils"):
        process_vision_info([], None)


async def test_what_belongs_to_slimes_loop_says_what_does_it_here() -> None:
    turns: Any = None
    with session_of_process(Session(turns, None, Sampling(max_new_tokens=1), ArgsView({}))):
        with pytest.raises(PlugPointError, match="--partial-rollout"):
            await abort(None, 0)
        with pytest.raises(PlugPointError, match="--rollout-function-path"):
            generate_rollout(None, 0, None)
